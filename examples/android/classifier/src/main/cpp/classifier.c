/* The native methods of Classifier.kt. */
#include <jni.h>
#include <stdint.h>
#include <stdlib.h>

#include "model.h"

/* As model.h calls the input and the output of your network. */
enum { INPUT = MODEL_IN_INPUT_ELEMENTS, CLASSES = MODEL_OUT_LOGITS_ELEMENTS };

static void throw(JNIEnv *env, const char *kind, const char *message) {
  const jclass found = (*env)->FindClass(env, kind);
  if (found != NULL) (*env)->ThrowNew(env, found, message);
}

static int failed(JNIEnv *env, int status) {
  if (status != MODEL_OK) throw(env, "java/lang/IllegalStateException", model_message(status));
  return status != MODEL_OK;
}

JNIEXPORT jlong JNICALL Java_com_example_classifier_Classifier_create(JNIEnv *env, jobject self, jobject weights,
                                                                      jint threads) {
  model_model *model = NULL;
  const void *const data = (*env)->GetDirectBufferAddress(env, weights);
  const jlong bytes = (*env)->GetDirectBufferCapacity(env, weights);
  (void)self;
  failed(env, model_create(&model, data, bytes < 0 ? 0 : (size_t)bytes, NULL, threads));
  return (jlong)(intptr_t)model;
}

JNIEXPORT jfloatArray JNICALL Java_com_example_classifier_Classifier_run(JNIEnv *env, jobject self, jlong model,
                                                                         jfloatArray input) {
  float logits[CLASSES];
  int status;
  jfloat *numbers;
  jfloatArray result;
  (void)self;
  if ((*env)->GetArrayLength(env, input) != INPUT) {
    throw(env, "java/lang/IllegalArgumentException", "the input has not as many numbers as the network takes");
    return NULL;
  }
  numbers = (*env)->GetFloatArrayElements(env, input, NULL);
  if (numbers == NULL) return NULL;
  status = model_run((const model_model *)(intptr_t)model, NULL, 1, numbers, logits);
  (*env)->ReleaseFloatArrayElements(env, input, numbers, JNI_ABORT);
  if (failed(env, status)) return NULL;
  result = (*env)->NewFloatArray(env, CLASSES);
  if (result != NULL) (*env)->SetFloatArrayRegion(env, result, 0, CLASSES, logits);
  return result;
}

JNIEXPORT void JNICALL Java_com_example_classifier_Classifier_free(JNIEnv *env, jobject self, jlong model) {
  (void)env, (void)self;
  model_free((model_model *)(intptr_t)model);
}
