import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/**
 * Debezium's engine alone, without Kafka: each of its batches becomes a file of JSON lines, and a line of
 * standard output says how many changes came so far. Arguments: a file of properties, and the folder to write to.
 */
public class Changes {
    static long changes = 0;
    static long files = 0;

    public static void main(String[] arguments) throws Exception {
        var properties = new Properties();
        try (var reader = new FileReader(arguments[0])) {
            properties.load(reader);
        }
        var folder = Path.of(arguments[1]);
        DebeziumEngine.create(Json.class)
                .using(properties)
                .notifying((List<ChangeEvent<String, String>> batch,
                        DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                    var lines = new ArrayList<String>(batch.size());
                    for (var change : batch) {
                        if (change.value() != null) {
                            lines.add(change.value());
                        }
                    }
                    write(folder, lines);
                    committer.markProcessed(batch.get(batch.size() - 1));
                    committer.markBatchFinished();
                    changes += lines.size();
                    System.out.println("changes " + changes);
                })
                .using((succeeded, message, error) -> {
                    System.err.println("ended: " + message);
                    System.exit(1);
                })
                .build()
                .run();
    }

    /** Spark reads no file whose name begins with a dot. */
    static void write(Path folder, List<String> lines) {
        try {
            var name = String.format("%09d.json", files++);
            var hidden = folder.resolve("." + name);
            Files.write(hidden, lines);
            Files.move(hidden, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
        } catch (java.io.IOException problem) {
            throw new java.io.UncheckedIOException(problem);
        }
    }
}
