package com.example.classifier;

import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;

/** Has the native methods of Classifier.kt: `Classifier WEIGHTS INPUT` prints the logits as bits. */
public class Classifier {
    private native long create(ByteBuffer weights, int threads);

    private native float[] run(long model, float[] input);

    private native void free(long model);

    public static void main(String[] values) throws Exception {
        System.loadLibrary("classifier");
        Classifier classifier = new Classifier();
        ByteBuffer weights;
        try (RandomAccessFile file = new RandomAccessFile(values[0], "r")) {
            weights = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, file.length());
        }
        ByteBuffer pixels = ByteBuffer.wrap(Files.readAllBytes(Path.of(values[1]))).order(ByteOrder.LITTLE_ENDIAN);
        float[] input = new float[pixels.remaining() / Float.BYTES];
        pixels.asFloatBuffer().get(input);
        long model = classifier.create(weights, 2);
        for (float logit : classifier.run(model, input)) {
            System.out.println(Integer.toUnsignedString(Float.floatToRawIntBits(logit)));
        }
        try {
            classifier.run(model, new float[1]);
        } catch (IllegalArgumentException expected) {
            System.out.println(expected.getMessage());
        }
        try {
            classifier.create(ByteBuffer.allocateDirect(7), 1);
        } catch (IllegalStateException expected) {
            System.out.println(expected.getMessage());
        }
        classifier.free(model);
    }
}
