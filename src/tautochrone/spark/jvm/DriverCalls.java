package tautochrone;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

import org.apache.commons.io.IOUtils;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.spark.sql.SparkSession;

import scala.Tuple2;
import scala.collection.Iterator;

/**
 * What Python asks of the driver's JVM often, one message for each answer. In a list of texts each ends with
 * NUL, which neither settings nor names of files contain.
 */
public final class DriverCalls {
    private static final String SEPARATOR = "\0";

    /** Settings of a session: name, value, name, value … */
    public String settings(SparkSession session) {
        StringBuilder text = new StringBuilder();
        Iterator settings = session.conf().getAll().iterator();
        while (settings.hasNext()) {
            Tuple2 setting = (Tuple2) settings.next();
            text.append(setting._1()).append(SEPARATOR).append(setting._2()).append(SEPARATOR);
        }
        return text.toString();
    }

    /**
     * A new session beside another one, without the settings whose names begin with one of `prefixes`, and
     * with others of its own.
     */
    public SparkSession newSession(SparkSession beside, String prefixes, String settings) {
        SparkSession session = beside.newSession();
        List without = split(prefixes);
        Iterator names = session.conf().getAll().keysIterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            for (int j = 0; j < without.size(); j++) {
                if (name.startsWith((String) without.get(j))) {
                    session.conf().unset(name);
                }
            }
        }
        List own = split(settings);
        for (int i = 0; i + 1 < own.size(); i += 2) {
            session.conf().set((String) own.get(i), (String) own.get(i + 1));
        }
        return session;
    }

    /** The text of a UTF-8 file; null when there is no such file. */
    public String read(Configuration conf, String file) throws IOException {
        Path path = new Path(file);
        FileSystem system = path.getFileSystem(conf);
        if (!system.exists(path)) {
            return null;
        }
        InputStream stream = system.open(path);
        try {
            return IOUtils.toString(stream, StandardCharsets.UTF_8);
        } finally {
            stream.close();
        }
    }

    /**
     * Write a UTF-8 file whole. On file systems whose scheme is not in `storedWhole` it is written as `scratch`
     * beside it first, and renamed over the old one. False: the file system did not rename it.
     */
    public boolean write(Configuration conf, String file, String text, String scratch, String storedWhole)
            throws IOException {
        Path path = new Path(file);
        FileSystem system = path.getFileSystem(conf);
        if (split(storedWhole).contains(String.valueOf(system.getUri().getScheme()))) {
            store(system, path, text);
            return true;
        }
        Path other = new Path(path.getParent(), scratch);
        store(system, other, text);
        system.delete(path, false);
        return system.rename(other, path);
    }

    private void store(FileSystem system, Path path, String text) throws IOException {
        OutputStream stream = system.create(path, true);
        try {
            stream.write(text.getBytes(StandardCharsets.UTF_8));
        } finally {
            stream.close();
        }
    }

    /** Whether a file, or a folder with all in it, is not there any more. */
    public boolean delete(Configuration conf, String file) throws IOException {
        Path path = new Path(file);
        FileSystem system = path.getFileSystem(conf);
        return system.delete(path, true) || !system.exists(path);
    }

    public boolean exists(Configuration conf, String file) throws IOException {
        Path path = new Path(file);
        return path.getFileSystem(conf).exists(path);
    }

    /** All names in a folder; none when there is no such folder. */
    public String names(Configuration conf, String folder) throws IOException {
        Path path = new Path(folder);
        FileSystem system = path.getFileSystem(conf);
        StringBuilder text = new StringBuilder();
        if (system.exists(path)) {
            FileStatus[] files = system.listStatus(path);
            for (int i = 0; i < files.length; i++) {
                text.append(files[i].getPath().getName()).append(SEPARATOR);
            }
        }
        return text.toString();
    }

    /** Of each file below a folder: path relative to it, modification time in ms, bytes. */
    public String stamps(Configuration conf, String folder) throws IOException {
        Path path = new Path(folder);
        FileSystem system = path.getFileSystem(conf);
        StringBuilder text = new StringBuilder();
        if (system.exists(path)) {
            String root = system.makeQualified(path).toUri().getPath();
            String prefix = root.endsWith("/") ? root : root + "/";
            RemoteIterator files = system.listFiles(path, true);
            while (files.hasNext()) {
                LocatedFileStatus file = (LocatedFileStatus) files.next();
                String name = file.getPath().toUri().getPath();
                text.append(name.startsWith(prefix) ? name.substring(prefix.length()) : name).append(SEPARATOR);
                text.append(file.getModificationTime()).append(SEPARATOR);
                text.append(file.getLen()).append(SEPARATOR);
            }
        }
        return text.toString();
    }

    private List split(String texts) {
        String[] parts = texts.split(SEPARATOR, -1);
        return Arrays.asList(parts).subList(0, parts.length - 1);
    }
}
