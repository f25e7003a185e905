package tautochrone;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;

import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SingleValueParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.SnapshotUpdate;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.data.DeleteLoader;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.DVFileWriter;
import org.apache.iceberg.deletes.Deletes;
import org.apache.iceberg.deletes.PositionDeleteIndex;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.io.DeleteWriteResult;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.spark.FileRewriteCoordinator;
import org.apache.iceberg.spark.SparkSchemaUtil;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.PhysicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import py4j.Gateway;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What Python asks of Iceberg often, one message for each answer. Each text of an answer ends with NUL. A value
 * that may be missing has a text before it, `+` or `-`.
 */
public final class IcebergCalls {
    private static final String SEPARATOR = "\0";

    private final Gateway gateway;

    public IcebergCalls(Gateway gateway) {
        this.gateway = gateway;
    }

    /**
     * A table, fresh from its catalog: what Py4J would answer for the table, its operations and its metadata; then
     * the class of the operations, the table's folder, the current snapshot's id, when the metadata was made (epoch
     * ms), and the values of properties.
     *
     * Iceberg's Spark code uses the active session of a thread, which only the thread that created the session
     * has, so it is set here.
     */
    public String load(SparkSession session, Catalog catalog, TableIdentifier name, String properties) {
        SparkSession.setActiveSession(session);
        Table table = catalog.loadTable(name);
        TableOperations operations = ((HasTableOperations) table).operations();
        TableMetadata metadata = operations.current();
        StringBuilder text = new StringBuilder();
        appendObject(text, table);
        appendObject(text, operations);
        appendObject(text, metadata);
        append(text, operations.getClass().getName());
        append(text, metadata.location());
        Snapshot current = metadata.currentSnapshot();
        appendOptional(text, current == null ? null : Long.toString(current.snapshotId()));
        append(text, Long.toString(metadata.lastUpdatedMillis()));
        String[] names = properties.split(SEPARATOR);
        for (int i = 0; i < names.length; i++) {
            appendOptional(text, (String) metadata.properties().get(names[i]));
        }
        return text.toString();
    }

    /**
     * The snapshot `version` and those before it, newest first, up to `until` if that is one of them: id, parent,
     * operation, schema, sequence number, time (epoch ms), number of entries of the summary, these.
     */
    public String history(TableMetadata metadata, String version, String until) {
        StringBuilder text = new StringBuilder();
        Snapshot snapshot = metadata.snapshot(Long.parseLong(version));
        while (snapshot != null) {
            String id = Long.toString(snapshot.snapshotId());
            Long parent = snapshot.parentId();
            append(text, id);
            appendOptional(text, parent == null ? null : parent.toString());
            appendOptional(text, snapshot.operation());
            appendOptional(text, snapshot.schemaId() == null ? null : snapshot.schemaId().toString());
            append(text, Long.toString(snapshot.sequenceNumber()));
            append(text, Long.toString(snapshot.timestampMillis()));
            Map summary = snapshot.summary();
            append(text, Integer.toString(summary == null ? 0 : summary.size()));
            Iterator entries = summary == null ? java.util.Collections.emptyIterator() : summary.entrySet().iterator();
            while (entries.hasNext()) {
                Map.Entry entry = (Map.Entry) entries.next();
                append(text, (String) entry.getKey());
                append(text, (String) entry.getValue());
            }
            snapshot = parent == null || id.equals(until) ? null : metadata.snapshot(parent.longValue());
        }
        return text.toString();
    }

    /**
     * The rows of a DataFrame, if they are a local relation that can be written unchanged; else null. They can if
     * they have the table's columns in the same order and with the same types. Otherwise Spark must plan the write,
     * with casts and checks.
     */
    public List localRows(Table table, Dataset rows) {
        LogicalPlan plan = rows.queryExecution().optimizedPlan();
        if (!(plan instanceof LocalRelation)) {
            return null;
        }
        StructType stored = SparkSchemaUtil.convert(table.schema());
        if (!stored.asNullable().equals(rows.schema().asNullable())) {
            return null;
        }
        if (!stored.equals(stored.asNullable()) && !stored.equals(rows.schema())) {
            return null; // A column is NOT NULL, and the local write would not check that.
        }
        return CollectionConverters.asJava(((LocalRelation) plan).data());
    }

    /**
     * Write such rows with the writer that Spark's tasks use: what Py4J would answer for each data file, and its
     * number of rows. They are not committed.
     *
     * @param group names the write
     */
    public String write(SparkSession session, Table table, StructType schema, List rows, String group)
            throws Exception {
        SparkSession.setActiveSession(session);
        Map options = new HashMap();
        // Without the second the writer would mark the files of a sorted table as sorted, which they are not.
        options.put("fanout-enabled", "true");
        options.put("use-table-distribution-and-ordering", "false");
        LogicalWriteInfo info = new LogicalWriteInfoImpl(
                group, schema, new CaseInsensitiveStringMap(options), Optional.empty(), Optional.empty());
        BatchWrite batch = new SparkRewriteTable(table, group).newWriteBuilder(info).build().toBatch();
        DataWriter writer = batch.createBatchWriterFactory(new PhysicalWriteInfoImpl(1)).createWriter(0, 0L);
        WriterCommitMessage written = null;
        try {
            writer.writeAll(rows.iterator());
            written = writer.commit();
        } finally {
            if (written == null) {
                writer.abort();
            }
            writer.close();
        }
        FileRewriteCoordinator coordinator = FileRewriteCoordinator.get();
        try {
            batch.commit(new WriterCommitMessage[] {written});
            StringBuilder text = new StringBuilder();
            Iterator files = coordinator.fetchNewFiles(table, group).iterator();
            while (files.hasNext()) {
                DataFile file = (DataFile) files.next();
                appendObject(text, file);
                append(text, Long.toString(file.recordCount()));
            }
            return text.toString();
        } finally {
            coordinator.clearRewrite(table, group);
        }
    }

    /** Removed rows: what a row delta gets for them, and new files of which no row is left. */
    public static final class Removal {
        final List vectors = new ArrayList();
        final List replaced = new ArrayList();
        final List emptied = new ArrayList();
        final List unused = new ArrayList();
        long rows;
    }

    /**
     * Write a Puffin file with a deletion vector for each data file in which rows are left. An older vector of the
     * file is merged into the new one, which replaces it.
     *
     * @param files of each data file its location, the positions to remove, separated by commas, and Py4J's name of
     *        its scan task, or of the file itself if the same commit adds it
     * @param operation names the new file
     * @return an error and the location of its file, both empty without one; then the removal, the number of its
     *         rows, and the new files of which no row is left
     */
    public String removal(Table table, String files, String operation) throws Exception {
        TableOperations operations = ((HasTableOperations) table).operations();
        if (operations.current().formatVersion() < 3) {
            return failed("FORMAT_WITHOUT_VECTORS", "");
        }
        OutputFileFactory output = OutputFileFactory.builderFor(table, 0, 0L)
                .format(FileFormat.PUFFIN).operationId(operation).build();
        final Map previous = new HashMap();
        DVFileWriter writer = new BaseDVFileWriter(output, new Function() {
            public Object apply(Object location) {
                return previous.get(location);
            }
        });
        final FileIO io = table.io();
        DeleteLoader loader = new BaseDeleteLoader(new Function() {
            public Object apply(Object file) {
                return io.newInputFile((DeleteFile) file);
            }
        });
        Removal removal = new Removal();
        String[] texts = files.split(SEPARATOR, -1);
        for (int i = 0; i + 2 < texts.length; i += 3) {
            String location = texts[i];
            Object object = gateway.getObject(texts[i + 2]);
            boolean isNew = object instanceof DataFile;
            DataFile file = (DataFile) (isNew ? object : ((FileScanTask) object).file());
            List older = isNew ? Collections.emptyList() : ((FileScanTask) object).deletes();
            String[] numbers = texts[i + 1].split(",");
            long[] positions = new long[numbers.length];
            for (int k = 0; k < numbers.length; k++) {
                positions[k] = Long.parseLong(numbers[k]);
                if (positions[k] < 0 || positions[k] >= file.recordCount()) {
                    return failed("NO_SUCH_ROW", location);
                }
            }
            PositionDeleteIndex index = Deletes.toPositionIndex(new Positions(positions));
            long deleted = positions.length;
            if (!older.isEmpty()) {
                for (int k = 0; k < older.size(); k++) {
                    if (((DeleteFile) older.get(k)).content() == FileContent.EQUALITY_DELETES) {
                        return failed("EQUALITY_DELETES", location);
                    }
                }
                PositionDeleteIndex earlier = loader.loadPositionDeletes(older, location);
                previous.put(location, earlier);
                deleted += earlier.cardinality();
                index.merge(earlier);
            }
            if (index.cardinality() != deleted) {
                return failed("ROW_DELETED_TWICE", location);
            }
            removal.rows += positions.length;
            if (deleted < file.recordCount()) {
                PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(file.specId()));
                writer.delete(location, index, spec, file.partition());
            } else if (isNew) {
                removal.unused.add(location);
            } else {
                removal.emptied.add(file); // Iceberg removes the older vector together with its data file.
            }
        }
        writer.close();
        DeleteWriteResult result = writer.result();
        removal.vectors.addAll(result.deleteFiles());
        removal.replaced.addAll(result.rewrittenDeleteFiles());
        StringBuilder text = new StringBuilder(failed("", ""));
        appendObject(text, removal);
        append(text, Long.toString(removal.rows));
        for (int i = 0; i < removal.unused.size(); i++) {
            append(text, (String) removal.unused.get(i));
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

    private String failed(String error, String location) {
        return error + SEPARATOR + location + SEPARATOR;
    }

    /** Give a row delta all that a removal has for it. */
    public void putRemoval(RowDelta delta, Removal removal) {
        for (int i = 0; i < removal.emptied.size(); i++) {
            delta.removeRows((DataFile) removal.emptied.get(i));
        }
        for (int i = 0; i < removal.vectors.size(); i++) {
            delta.addDeletes((DeleteFile) removal.vectors.get(i));
        }
        for (int i = 0; i < removal.replaced.size(); i++) {
            delta.removeDeletes((DeleteFile) removal.replaced.get(i));
        }
    }

    /** The scan tasks of some data files of a version: the file's location, and what Py4J would answer for it. */
    public String tasksOf(Table table, String version, String locations) throws IOException {
        Set wanted = new HashSet(Arrays.asList(locations.split(SEPARATOR)));
        TableScan scan = table.newScan().useSnapshot(Long.parseLong(version));
        // With a thread pool Iceberg polls every 10 ms for its end.
        scan = (TableScan) scan.planWith(MoreExecutors.newDirectExecutorService());
        CloseableIterable planned = scan.planFiles();
        StringBuilder text = new StringBuilder();
        try {
            Iterator tasks = planned.iterator();
            while (tasks.hasNext()) {
                FileScanTask task = (FileScanTask) tasks.next();
                if (wanted.contains(((DataFile) task.file()).location())) {
                    append(text, ((DataFile) task.file()).location());
                    appendObject(text, task);
                }
            }
        } finally {
            planned.close();
        }
        return text.toString();
    }

    /**
     * Of each file task: the data file's location, format, bytes and rows, whether it is encrypted, a text that is
     * equal for equal delete files, and its data sequence number.
     */
    public String dataFiles(List tasks) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < tasks.size(); i++) {
            FileScanTask task = (FileScanTask) tasks.get(i);
            DataFile file = (DataFile) task.file();
            append(text, file.location());
            append(text, file.format().name());
            append(text, Long.toString(file.fileSizeInBytes()));
            append(text, Long.toString(file.recordCount()));
            append(text, file.keyMetadata() == null ? "-" : "+");
            StringBuilder deletes = new StringBuilder();
            for (int k = 0; k < task.deletes().size(); k++) {
                DeleteFile delete = (DeleteFile) task.deletes().get(k);
                deletes.append(delete.content()).append(' ').append(delete.location());
                deletes.append(' ').append(delete.contentOffset()).append('\n');
            }
            append(text, deletes.toString());
            append(text, file.dataSequenceNumber().toString());
        }
        return text.toString();
    }

    /**
     * Of file tasks what is known of the values in each column: its id, and its nulls, its NaNs, its lower and upper
     * bound (as JSON), each if it is known.
     *
     * @param numbers of the tasks in the list, separated by commas
     * @return for each of them the number of columns, then these
     */
    public String columnStatistics(Schema schema, List tasks, String numbers) {
        StringBuilder text = new StringBuilder();
        String[] chosen = numbers.split(",");
        for (int i = 0; i < chosen.length; i++) {
            DataFile file = (DataFile) ((FileScanTask) tasks.get(Integer.parseInt(chosen[i]))).file();
            StringBuilder columns = new StringBuilder();
            int count = 0;
            Iterator ids = schema.idToName().keySet().iterator();
            while (ids.hasNext()) {
                Integer id = (Integer) ids.next();
                Type type = schema.findType(id.intValue());
                if (!type.isPrimitiveType()) {
                    continue;
                }
                count++;
                append(columns, id.toString());
                appendOptional(columns, number(file.nullValueCounts(), id));
                appendOptional(columns, number(file.nanValueCounts(), id));
                appendOptional(columns, bound(file.lowerBounds(), id, type));
                appendOptional(columns, bound(file.upperBounds(), id, type));
            }
            append(text, Integer.toString(count));
            text.append(columns);
        }
        return text.toString();
    }

    private String number(Map counts, Integer id) {
        Object count = counts == null ? null : counts.get(id);
        return count == null ? null : count.toString();
    }

    private String bound(Map bounds, Integer id, Type type) {
        ByteBuffer bytes = bounds == null ? null : (ByteBuffer) bounds.get(id);
        if (bytes == null) {
            return null;
        }
        Object value = Conversions.fromByteBuffer(type, (ByteBuffer) bytes.duplicate());
        return SingleValueParser.toJson(type, value);
    }

    /**
     * The deleted positions of file tasks as deletion vectors, in the bytes that a Puffin file has.
     *
     * @param numbers of the tasks in the list, separated by commas; none has rows that are deleted by value
     * @return for each of them the number of positions, and the bytes in base 64
     */
    public String deletionVectors(Table table, List tasks, String numbers) {
        final FileIO io = table.io();
        DeleteLoader loader = new BaseDeleteLoader(new Function() {
            public Object apply(Object file) {
                return io.newInputFile((DeleteFile) file);
            }
        });
        StringBuilder text = new StringBuilder();
        String[] chosen = numbers.split(",");
        for (int i = 0; i < chosen.length; i++) {
            FileScanTask task = (FileScanTask) tasks.get(Integer.parseInt(chosen[i]));
            PositionDeleteIndex index =
                    loader.loadPositionDeletes(task.deletes(), ((DataFile) task.file()).location());
            byte[] bytes = new byte[0];
            if (index.cardinality() > 0) {
                ByteBuffer serialized = index.serialize();
                bytes = new byte[serialized.remaining()];
                serialized.get(bytes);
            }
            append(text, Long.toString(index.cardinality()));
            append(text, Base64.getEncoder().encodeToString(bytes));
        }
        return text.toString();
    }

    /** The value of a property of a table, or null. */
    public String property(Table table, String name) {
        return (String) table.properties().get(name);
    }

    /** The snapshot of an update with this property, on this branch. It is not committed. */
    public Snapshot produced(SnapshotUpdate update, String property, String value, String branch) {
        update.set(property, value);
        // With a thread pool Iceberg polls every 10 ms for its end.
        update.scanManifestsWith(MoreExecutors.newDirectExecutorService());
        update.toBranch(branch);
        return (Snapshot) update.apply();
    }

    /** Metadata in which the branch is at a new snapshot and the property has a value. */
    public TableMetadata updated(
            TableMetadata metadata, Snapshot snapshot, String branch, String property, String value) {
        return TableMetadata.buildFrom(metadata)
                .setBranchSnapshot(snapshot, branch)
                .setProperties(Collections.singletonMap(property, value))
                .build();
    }

    /** Metadata with a tag of a version, if one is named, and without other tags. */
    public TableMetadata tagged(TableMetadata metadata, String tag, String version, String outdated) {
        TableMetadata.Builder builder = TableMetadata.buildFrom(metadata);
        if (!tag.isEmpty()) {
            builder.setRef(tag, SnapshotRef.tagBuilder(Long.parseLong(version)).build());
        }
        String[] names = outdated.split(SEPARATOR);
        for (int i = 0; i < names.length; i++) {
            if (!names[i].isEmpty()) {
                builder.removeRef(names[i]);
            }
        }
        return builder.build();
    }

    /** What Py4J would answer for each element of a collection. */
    public String elements(Iterable collection) {
        StringBuilder text = new StringBuilder();
        Iterator elements = collection.iterator();
        while (elements.hasNext()) {
            appendObject(text, elements.next());
        }
        return text.toString();
    }

    /** The branches and tags of a table: name, `BRANCH` or `TAG`, id and sequence number of its snapshot. */
    public String references(TableMetadata metadata) {
        StringBuilder text = new StringBuilder();
        Iterator references = metadata.refs().entrySet().iterator();
        while (references.hasNext()) {
            Map.Entry entry = (Map.Entry) references.next();
            SnapshotRef reference = (SnapshotRef) entry.getValue();
            append(text, (String) entry.getKey());
            append(text, reference.isTag() ? "TAG" : "BRANCH");
            append(text, Long.toString(reference.snapshotId()));
            append(text, Long.toString(metadata.snapshot(reference.snapshotId()).sequenceNumber()));
        }
        return text.toString();
    }

    /** The names of the columns of a schema. */
    public String columns(Schema schema) {
        StringBuilder text = new StringBuilder();
        Iterator columns = schema.columns().iterator();
        while (columns.hasNext()) {
            append(text, ((Types.NestedField) columns.next()).name());
        }
        return text.toString();
    }

    private void append(StringBuilder text, String value) {
        if (value.indexOf(SEPARATOR) >= 0) {
            throw new IllegalArgumentException("A text for Python contains NUL"); // The text may be a secret.
        }
        text.append(value).append(SEPARATOR);
    }

    private void appendOptional(StringBuilder text, String value) {
        append(text, value == null ? "-" : "+");
        append(text, value == null ? "" : value);
    }

    private void appendObject(StringBuilder text, Object object) {
        append(text, gateway.getReturnObject(object).getCommandPart());
    }
}
