package tautochrone;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.function.Function;
import java.util.stream.Stream;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.OverwriteFiles;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.SingleValueParser;
import org.apache.iceberg.SnapshotUpdate;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.DVFileWriter;
import org.apache.iceberg.deletes.Deletes;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.mapping.NameMapping;
import org.apache.iceberg.mapping.NameMappingParser;
import org.apache.iceberg.parquet.ParquetSchemaUtil;
import org.apache.iceberg.parquet.ParquetUtil;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.metadata.ParquetMetadata;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.iceberg.shaded.org.apache.parquet.schema.GroupType;
import org.apache.iceberg.shaded.org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.iceberg.shaded.org.apache.parquet.schema.MessageType;
import org.apache.iceberg.shaded.org.apache.parquet.schema.Type;

import py4j.Gateway;

/** What Python asks of Iceberg for tables whose data files are those of a foreign table. See `IcebergCalls`. */
public final class ShadowTableCalls {
    private static final String SEPARATOR = "\0";
    private static final String PART = "\1";

    private final Gateway gateway;

    public ShadowTableCalls(Gateway gateway) {
        this.gateway = gateway;
    }

    /**
     * Describe data files. Their footers are read, and no rows.
     *
     * @param mapping Iceberg's JSON of a name mapping, for files without ids of columns
     * @param files of each file its location, its bytes and its partition as JSON
     * @return of each file what Py4J would answer for it, its number of rows, and, if it has ids of columns, those
     *         of all of them: see `collectIds`; then Iceberg's JSON of its columns that have ids or stand in the
     *         mapping, empty if they are those of the file before; then the ids of those with milliseconds and of
     *         lists of two levels, which Iceberg's JSON does not tell from microseconds and other lists
     */
    public String dataFiles(Configuration conf, PartitionSpec spec, String mapping, String files) throws Exception {
        NameMapping names = NameMappingParser.fromJson(mapping);
        StringBuilder text = new StringBuilder();
        String[] texts = files.split(SEPARATOR, -1);
        Footers footers = new Footers(conf, texts);
        try {
            describe(footers, spec, names, texts, text);
        } finally {
            footers.close();
        }
        return text.toString();
    }

    private void describe(
            Footers footers, PartitionSpec spec, NameMapping names, String[] texts, StringBuilder text)
            throws Exception {
        String before = "";
        for (int i = 0; i + 2 < texts.length; i += 3) {
            ParquetMetadata footer = footers.next();
            Stream none = new ArrayList().stream();
            DataFiles.Builder builder = DataFiles.builder(spec)
                    .withPath(texts[i])
                    .withFormat(FileFormat.PARQUET)
                    .withFileSizeInBytes(Long.parseLong(texts[i + 1]))
                    .withMetrics(ParquetUtil.footerMetrics(footer, none, MetricsConfig.getDefault(), names));
            if (spec.isPartitioned()) {
                builder.withPartition((StructLike) SingleValueParser.fromJson(spec.partitionType(), texts[i + 2]));
            }
            DataFile file = builder.build();
            appendObject(text, file);
            append(text, Long.toString(file.recordCount()));
            GroupType schema = footer.getFileMetaData().getSchema();
            StringBuilder ids = new StringBuilder();
            MessageType columns = footer.getFileMetaData().getSchema();
            if (ParquetSchemaUtil.hasIds(columns)) {
                collectIds(schema, "", ids);
            } else {
                columns = ParquetSchemaUtil.applyNameMapping(columns, names);
            }
            append(text, ids.toString());
            String types = SchemaParser.toJson(ParquetSchemaUtil.convertAndPrune(columns));
            append(text, types.equals(before) ? "" : types);
            before = types;
            StringBuilder milliseconds = new StringBuilder();
            StringBuilder lists = new StringBuilder();
            collectUnread(columns, milliseconds, lists);
            append(text, milliseconds.toString());
            append(text, lists.toString());
        }
    }

    /** The footers of files in their order. Of many files some are read ahead, because storages answer late. */
    private static final class Footers {
        private static final int READERS = 8;
        private static final int AHEAD = 32;
        /** So few are read faster than threads are started. */
        private static final int FEW = 4;

        private final Configuration conf;
        private final String[] texts;
        private final ExecutorService pool;
        private final ArrayDeque pending = new ArrayDeque();
        private int begun = 0;

        /** @param texts of each file three, of which the first one is its location */
        Footers(Configuration conf, String[] texts) {
            this.conf = conf;
            this.texts = texts;
            this.pool = texts.length / 3 > FEW ? Executors.newFixedThreadPool(READERS) : null;
        }

        ParquetMetadata next() throws Exception {
            while (begun + 2 < texts.length && pending.size() < (pool == null ? 1 : AHEAD)) {
                FutureTask reading = new FutureTask(new Footer(conf, texts[begun]));
                pending.add(reading);
                begun += 3;
                if (pool == null) {
                    reading.run();
                } else {
                    pool.execute(reading);
                }
            }
            try {
                return (ParquetMetadata) ((FutureTask) pending.remove()).get();
            } catch (ExecutionException error) {
                throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
            }
        }

        void close() {
            if (pool != null) {
                pool.shutdownNow();
            }
        }
    }

    private static final class Footer implements Callable {
        private final Configuration conf;
        private final String location;

        Footer(Configuration conf, String location) {
            this.conf = conf;
            this.location = location;
        }

        public Object call() throws Exception {
            ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(new Path(location), conf));
            try {
                return reader.getFooter();
            } finally {
                reader.close();
            }
        }
    }

    /**
     * Collect ids of columns that Iceberg's readers do not read rightly. They take statistics in milliseconds for
     * microseconds, and filters by them skip rows. In lists they look for a group around each element.
     */
    private void collectUnread(GroupType group, StringBuilder milliseconds, StringBuilder lists) {
        Iterator fields = group.getFields().iterator();
        while (fields.hasNext()) {
            Type field = (Type) fields.next();
            LogicalTypeAnnotation kind = field.getLogicalTypeAnnotation();
            String id = field.getId() == null ? "" : field.getId().intValue() + PART;
            if (!field.isPrimitive()) {
                GroupType list = field.asGroupType();
                if (kind instanceof LogicalTypeAnnotation.ListLogicalTypeAnnotation
                        && ParquetSchemaUtil.determineListElementType(list) == list.getType(0)) {
                    lists.append(id);
                }
                collectUnread(list, milliseconds, lists);
            } else if (kind instanceof LogicalTypeAnnotation.TimestampLogicalTypeAnnotation
                    && ((LogicalTypeAnnotation.TimestampLogicalTypeAnnotation) kind).getUnit()
                            == LogicalTypeAnnotation.TimeUnit.MILLIS) {
                milliseconds.append(id);
            }
        }
    }

    /** The paths of all columns and fields, each with its id or `-`; the parts of lists and maps as Iceberg calls them. */
    private void collectIds(GroupType group, String above, StringBuilder ids) {
        Iterator fields = group.getFields().iterator();
        while (fields.hasNext()) {
            Type field = (Type) fields.next();
            collectId(field, above.isEmpty() ? field.getName() : above + PART + field.getName(), ids);
        }
    }

    private void collectId(Type field, String path, StringBuilder ids) {
        ids.append(path).append(PART).append(field.getId() == null ? "-" : Integer.toString(field.getId().intValue()));
        ids.append('\n');
        if (field.isPrimitive()) {
            return;
        }
        GroupType group = field.asGroupType();
        LogicalTypeAnnotation kind = group.getLogicalTypeAnnotation();
        boolean hasParts = group.getFieldCount() == 1 && !group.getType(0).isPrimitive();
        GroupType repeated = hasParts ? group.getType(0).asGroupType() : null;
        if (kind instanceof LogicalTypeAnnotation.ListLogicalTypeAnnotation && hasParts) {
            collectId(repeated.getType(0), path + PART + "element", ids);
        } else if (kind instanceof LogicalTypeAnnotation.MapLogicalTypeAnnotation && hasParts) {
            collectId(repeated.getType(0), path + PART + "key", ids);
            collectId(repeated.getType(1), path + PART + "value", ids);
        } else {
            collectIds(group, path, ids);
        }
    }

    /**
     * Write a Puffin file with a deletion vector for each data file.
     *
     * @param files of each data file Py4J's name of it and the positions, separated by commas
     * @param operation names the new file
     * @return what Py4J would answer for the vector of each data file, in their order
     */
    public String vectors(Table table, String files, String operation) throws Exception {
        OutputFileFactory output = OutputFileFactory.builderFor(table, 0, 0L)
                .format(FileFormat.PUFFIN).operationId(operation).build();
        DVFileWriter writer = new BaseDVFileWriter(output, new Function() {
            public Object apply(Object location) {
                return null;
            }
        });
        List locations = new ArrayList();
        String[] texts = files.split(SEPARATOR, -1);
        for (int i = 0; i + 1 < texts.length; i += 2) {
            DataFile file = (DataFile) gateway.getObject(texts[i]);
            String[] numbers = texts[i + 1].split(",");
            long[] positions = new long[numbers.length];
            for (int k = 0; k < numbers.length; k++) {
                positions[k] = Long.parseLong(numbers[k]);
                if (positions[k] < 0 || positions[k] >= file.recordCount()) {
                    throw new IllegalArgumentException(
                            file.location() + " has " + file.recordCount() + " rows and none at " + positions[k]);
                }
            }
            PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(file.specId()));
            writer.delete(file.location(), Deletes.toPositionIndex(new Positions(positions)), spec, file.partition());
            locations.add(file.location());
        }
        writer.close();
        java.util.Map written = new java.util.HashMap();
        Iterator vectors = writer.result().deleteFiles().iterator();
        while (vectors.hasNext()) {
            DeleteFile vector = (DeleteFile) vectors.next();
            written.put(vector.referencedDataFile().toString(), vector);
        }
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < locations.size(); i++) {
            appendObject(text, written.get(locations.get(i)));
        }
        return text.toString();
    }

    /** Janino, as it is used here, calls no static methods of interfaces, such as `CloseableIterable.withNoopClose`. */
    private static final class Positions implements CloseableIterable, CloseableIterator {
        private final long[] positions;
        private int next = 0;

        Positions(long[] positions) {
            this.positions = positions;
        }

        public CloseableIterator iterator() {
            return this;
        }

        public boolean hasNext() {
            return next < positions.length;
        }

        public Object next() {
            return Long.valueOf(positions[next++]);
        }

        public void close() {
        }
    }

    /**
     * Add a snapshot to a transaction, which is not committed. The lists are Py4J's names of files.
     *
     * @param parent the snapshot before; empty if there is none
     * @param rearranges the same rows are in other files
     * @param properties of the snapshot
     * @return its operation
     */
    public String change(
            Transaction transaction, String parent, boolean rearranges, String removedFiles, String removedVectors,
            String addedFiles, String addedVectors, Map properties) {
        List gone = objects(removedFiles);
        List goneVectors = objects(removedVectors);
        List added = objects(addedFiles);
        List vectors = objects(addedVectors);
        SnapshotUpdate update;
        if (rearranges) {
            RewriteFiles rewrite = transaction.newRewrite();
            if (!parent.isEmpty()) {
                rewrite.validateFromSnapshot(Long.parseLong(parent));
            }
            rewrite.rewriteFiles(new HashSet(gone), new HashSet(goneVectors), new HashSet(added), new HashSet(vectors));
            update = rewrite;
        } else if (goneVectors.isEmpty() && vectors.isEmpty() && gone.isEmpty()) {
            AppendFiles append = transaction.newAppend();
            for (int i = 0; i < added.size(); i++) {
                append.appendFile((DataFile) added.get(i));
            }
            update = append;
        } else if (goneVectors.isEmpty() && vectors.isEmpty()) {
            OverwriteFiles overwrite = transaction.newOverwrite();
            for (int i = 0; i < gone.size(); i++) {
                overwrite.deleteFile((DataFile) gone.get(i));
            }
            for (int i = 0; i < added.size(); i++) {
                overwrite.addFile((DataFile) added.get(i));
            }
            update = overwrite;
        } else {
            RowDelta delta = transaction.newRowDelta();
            if (!parent.isEmpty()) {
                // Without a start snapshot, Iceberg compares with every vector in the history.
                delta.validateFromSnapshot(Long.parseLong(parent));
            }
            for (int i = 0; i < gone.size(); i++) {
                delta.removeRows((DataFile) gone.get(i));
            }
            for (int i = 0; i < goneVectors.size(); i++) {
                delta.removeDeletes((DeleteFile) goneVectors.get(i));
            }
            for (int i = 0; i < added.size(); i++) {
                delta.addRows((DataFile) added.get(i));
            }
            for (int i = 0; i < vectors.size(); i++) {
                delta.addDeletes((DeleteFile) vectors.get(i));
            }
            update = delta;
        }
        Iterator entries = properties.entrySet().iterator();
        while (entries.hasNext()) {
            Map.Entry entry = (Map.Entry) entries.next();
            update.set((String) entry.getKey(), (String) entry.getValue());
        }
        // With a thread pool Iceberg polls every 10 ms for its end.
        update.scanManifestsWith(MoreExecutors.newDirectExecutorService());
        update.commit();
        return transaction.table().currentSnapshot().operation();
    }

    private List objects(String names) {
        List objects = new ArrayList();
        String[] texts = names.split(SEPARATOR);
        for (int i = 0; i < texts.length; i++) {
            if (!texts[i].isEmpty()) {
                objects.add(gateway.getObject(texts[i]));
            }
        }
        return objects;
    }

    private void append(StringBuilder text, String value) {
        text.append(value).append(SEPARATOR);
    }

    private void appendObject(StringBuilder text, Object object) {
        append(text, gateway.getReturnObject(object).getCommandPart());
    }
}
