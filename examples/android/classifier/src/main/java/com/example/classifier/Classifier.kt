package com.example.classifier

import android.content.res.AssetManager
import java.io.FileInputStream
import java.nio.ByteBuffer
import java.nio.channels.FileChannel.MapMode.READ_ONLY

/** A compiled network. Threads may share it; close it when none uses it any more. */
class Classifier private constructor(
    private val weights: ByteBuffer, // the native model reads it as long as there is one
    threads: Int,
) : AutoCloseable {
    private var model: Long = create(weights, threads)

    /** The logits of one input, prepared as in the calibration. */
    fun run(input: FloatArray): FloatArray {
        check(model != 0L) { "the classifier is closed" }
        return run(model, input)
    }

    override fun close() {
        free(model)
        model = 0
    }

    private external fun create(weights: ByteBuffer, threads: Int): Long

    private external fun run(model: Long, input: FloatArray): FloatArray

    private external fun free(model: Long)

    companion object {
        init {
            System.loadLibrary("classifier")
        }

        /** Map weights.bin out of the package, where it must not be compressed. threads: 0 for all processors. */
        fun open(assets: AssetManager, threads: Int = 0): Classifier =
            assets.openFd("weights.bin").use { file ->
                FileInputStream(file.fileDescriptor).channel.use { channel ->
                    Classifier(channel.map(READ_ONLY, file.startOffset, file.declaredLength), threads)
                }
            }
    }
}
