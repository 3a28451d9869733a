//! A directory of tables: files of a range of epochs each, in Parquet or Arrow's IPC format.
//!
//! A file is written as a whole, so a reader finds whole files only. Its name is its range, and its
//! metadata name the last epoch in it. The newest file may lack the last epochs of its range; it is
//! then replaced as a whole. So after a kill every epoch is in one file, once: a restarted sink
//! rewrites the newest range from the log, with the same content.

#![cfg_attr(
    not(any(feature = "parquet", feature = "arrow")),
    allow(dead_code, unused_variables, reason = "no format is built")
)]

#[cfg(feature = "arrow")]
mod arrow;
mod columns;
#[cfg(feature = "parquet")]
mod parquet;

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::RangeDirectory;
use crate::connect::{EpochStamp, Outlet, OutletContent, RequestError};
use crate::document::definition::{Word, word};
use crate::estimates::EstimateRecord;
use crate::whole;
use columns::TableColumns;

/// A format of tables in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::connect) enum TableFormat {
    Parquet,
    Arrow,
}

/// Words of formats, for sinks that write tables only.
pub(in crate::connect) const TABLE_FORMATS: &[Word<TableFormat>] = &[
    word("parquet", TableFormat::Parquet, "Parquet, with a range of epochs in each object."),
    word("arrow", TableFormat::Arrow, "The same in Arrow's IPC format (Feather)."),
];

/// Storage of a sink's files, which are written as a whole.
pub(in crate::connect) trait TableFolder: Send {
    /// Opens it, and returns the names of its files.
    fn open(&mut self) -> Result<Vec<String>, RequestError>;

    /// Returns a file.
    fn read(&mut self, name: &str) -> Result<Vec<u8>, RequestError>;

    /// Writes a file, in place of one with the same name. It is there as a whole when this returns.
    fn replace(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), RequestError>;
}

/// Key of our metadata in a file.
const METADATA_KEY: &str = "hushflow";

impl TableFormat {
    /// Returns the reason why this build can't write it, if it can't.
    pub(in crate::connect) fn missing(self) -> Option<&'static str> {
        match self {
            TableFormat::Parquet if !cfg!(feature = "parquet") => {
                Some("built without Parquet: cargo build --features parquet")
            }
            TableFormat::Arrow if !cfg!(feature = "arrow") => {
                Some("built without Arrow: cargo build --features arrow")
            }
            _ => None,
        }
    }

    /// Extension of its files.
    fn extension(self) -> &'static str {
        match self {
            TableFormat::Parquet => "parquet",
            TableFormat::Arrow => "arrow",
        }
    }

    /// Encodes a table with our metadata.
    fn encode(self, columns: &TableColumns, metadata: String) -> io::Result<Vec<u8>> {
        match self {
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => parquet::encode(columns, metadata).map_err(io::Error::other),
            #[cfg(feature = "arrow")]
            TableFormat::Arrow => arrow::encode(columns, metadata).map_err(io::Error::other),
            #[cfg(not(all(feature = "parquet", feature = "arrow")))]
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the metadata of a table, if they are ours.
    fn metadata(self, bytes: Vec<u8>) -> io::Result<Option<String>> {
        match self {
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => parquet::metadata(bytes).map_err(io::Error::other),
            #[cfg(feature = "arrow")]
            TableFormat::Arrow => arrow::metadata(bytes).map_err(io::Error::other),
            #[cfg(not(all(feature = "parquet", feature = "arrow")))]
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// The files of a sink, and the range that is being filled.
pub(in crate::connect) struct RangeWriter {
    folder: Box<dyn TableFolder>,
    format: TableFormat,
    /// Epochs in a file.
    epochs: u64,
    range: EpochRange,
    columns: TableColumns,
    /// The last epoch in `columns`, until the file holds it.
    unwritten: Option<EpochStamp>,
    /// The last epoch in the file of the range. Until `columns` have reached it, they may come from
    /// another log, and must not replace the file.
    held: u64,
}

/// The first and the last epoch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EpochRange {
    first: u64,
    last: u64,
}

impl EpochRange {
    fn after(epoch: u64, length: u64) -> Self {
        EpochRange { first: epoch + 1, last: epoch.saturating_add(length) }
    }

    /// Name of its file.
    fn name(self, format: TableFormat) -> String {
        format!("epochs-{:010}-{:010}.{}", self.first, self.last, format.extension())
    }

    /// Reads the range from the name of a file.
    fn of(name: &str, format: TableFormat) -> Option<Self> {
        let range = name.strip_prefix("epochs-")?.strip_suffix(format.extension())?.strip_suffix('.')?;
        let (first, last) = range.split_once('-')?;
        let range = EpochRange { first: first.parse().ok()?, last: last.parse().ok()? };
        (1 <= range.first && range.first <= range.last).then_some(range)
    }
}

impl RangeWriter {
    /// Writes files of `sink.epochs` epochs each to a directory.
    pub(super) fn new(sink: RangeDirectory) -> Self {
        let RangeDirectory { directory, format, epochs } = sink;
        Self::to(LocalFolder { directory, lock: None }, format, epochs)
    }

    pub(in crate::connect) fn to(
        folder: impl TableFolder + 'static,
        format: TableFormat,
        epochs: u64,
    ) -> Self {
        let (range, columns) = (EpochRange::after(0, epochs), TableColumns::default());
        RangeWriter { folder: Box::new(folder), format, epochs, range, columns, unwritten: None, held: 0 }
    }

    /// Finds the newest file. Begins the range after it, or that file's own range again if it isn't
    /// full.
    fn begin(&mut self) -> Result<OutletContent, RequestError> {
        let names = self.folder.open()?;
        (self.columns, self.unwritten, self.held) = (TableColumns::default(), None, 0);
        let newest = names.iter().filter_map(|name| EpochRange::of(name, self.format)).max();
        let Some(range) = newest else {
            self.range = EpochRange::after(0, self.epochs);
            return Ok(OutletContent::default());
        };
        let name = range.name(self.format);
        // A file that can't be decoded isn't ours either.
        let text = self.format.metadata(self.folder.read(&name)?).ok().flatten();
        let last = text.and_then(|text| EpochStamp::of(text.as_bytes()));
        let last = last.filter(|last| (range.first..=range.last).contains(&last.epoch)).ok_or_else(|| {
            io::Error::other(format!(
                "{name} was not written by this sink: name a directory that only this sink uses"
            ))
        })?;
        let is_full = last.epoch == range.last;
        self.range = if is_full { EpochRange::after(range.last, self.epochs) } else { range };
        let whole = if is_full { range.last } else { range.first - 1 };
        self.held = last.epoch;
        Ok(OutletContent { whole, last: Some(last) })
    }

    /// Writes the file of the range, as far as it is filled. A range without rows has no file,
    /// because its columns would be unknown.
    fn write(&mut self) -> Result<(), RequestError> {
        let is_new = |stamp: &&EpochStamp| stamp.epoch >= self.held && !self.columns.is_empty();
        let Some(stamp) = self.unwritten.as_ref().filter(is_new) else {
            return Ok(());
        };
        let metadata = json!({
            "epoch": stamp.epoch, "generation": stamp.generation, "chain": stamp.chain,
            "private": self.columns.is_private(),
        });
        let bytes = self.format.encode(&self.columns, metadata.to_string())?;
        self.folder.replace(&self.range.name(self.format), bytes)?;
        self.unwritten = None;
        Ok(())
    }
}

impl Outlet<[EstimateRecord]> for RangeWriter {
    fn open(&mut self) -> Result<OutletContent, RequestError> {
        self.begin()
    }

    fn append(&mut self, stamp: &EpochStamp, records: &[EstimateRecord]) -> Result<(), RequestError> {
        records.iter().for_each(|record| self.columns.push(record));
        self.unwritten = Some(stamp.clone());
        if stamp.epoch >= self.range.last {
            self.write()?;
            self.range = EpochRange::after(stamp.epoch, self.epochs);
            self.columns = TableColumns::default();
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), RequestError> {
        self.write()
    }
}

/// A directory of this machine.
struct LocalFolder {
    directory: PathBuf,
    /// The directory, locked for as long as this sink writes to it.
    lock: Option<File>,
}

impl TableFolder for LocalFolder {
    fn open(&mut self) -> Result<Vec<String>, RequestError> {
        fs::create_dir_all(&self.directory)?;
        // Release our own lock before it is taken again.
        self.lock = None;
        self.lock = Some(locked(&self.directory)?);
        let entries = whole::entries(&self.directory)?;
        Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, RequestError> {
        Ok(fs::read(self.directory.join(name))?)
    }

    /// Writes it under a hidden name, and renames it once it is durable.
    fn replace(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), RequestError> {
        let (path, hidden) = (self.directory.join(name), self.directory.join(format!(".{name}.tmp")));
        let mut file = File::create(&hidden)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&hidden, &path)?;
        Ok(File::open(&self.directory)?.sync_all()?)
    }
}

/// Locks a directory, so that only one process writes to it.
fn locked(folder: &Path) -> io::Result<File> {
    let lock = File::open(folder)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(io::Error::other(
            "another process writes to this destination: give this sink to only one process",
        )),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimates::{EstimateField, FieldPart};

    fn record(epoch: u64, key: &str) -> EstimateRecord {
        let mean = |number| EstimateField::number("mean", FieldPart::Value, &["x"], number);
        EstimateRecord {
            epoch,
            start: Some(epoch as i64),
            key: key.into(),
            by: "view",
            view: "v".into(),
            private: true,
            fields: vec![
                mean(epoch.is_multiple_of(2).then_some(0.5)),
                EstimateField::word("quality", Some("good")),
            ],
        }
    }

    fn stamp(epoch: u64) -> EpochStamp {
        EpochStamp { epoch, generation: 1, chain: format!("{epoch:x}") }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = whole::entries(folder).unwrap();
        let mut names: Vec<_> =
            entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_range_is_replaced_until_it_is_full() {
        for format in [TableFormat::Parquet, TableFormat::Arrow].into_iter().filter(|f| f.missing().is_none())
        {
            let folder = tempfile::tempdir().unwrap();
            let sink = RangeDirectory { directory: folder.path().join("out"), format, epochs: 3 };
            let directory = sink.directory.clone();
            let name = |first, last| EpochRange { first, last }.name(format);
            let mut writer = RangeWriter::new(sink.clone());
            assert_eq!(writer.begin().unwrap(), OutletContent::default());
            assert!(RangeWriter::new(sink.clone()).begin().is_err(), "another process may be at work");
            let append = |writer: &mut RangeWriter, epoch| {
                writer.append(&stamp(epoch), &[record(epoch, "a"), record(epoch, "b")]).unwrap();
            };
            (1..=2).for_each(|epoch| append(&mut writer, epoch));
            assert!(names(&directory).is_empty());
            writer.settle().unwrap();
            assert_eq!(names(&directory), [name(1, 3)]);
            drop(writer);
            // The range keeps its name if the configured length of ranges changes.
            let mut writer = RangeWriter::new(RangeDirectory { epochs: 5, ..sink.clone() });
            assert_eq!(writer.begin().unwrap(), OutletContent { whole: 0, last: Some(stamp(2)) });
            let first = fs::read(directory.join(name(1, 3))).unwrap();
            append(&mut writer, 1);
            // The log may be another one that is shorter.
            writer.settle().unwrap();
            assert_eq!(fs::read(directory.join(name(1, 3))).unwrap(), first);
            append(&mut writer, 2);
            writer.settle().unwrap();
            assert_eq!(
                fs::read(directory.join(name(1, 3))).unwrap(),
                first,
                "the same epochs are the same bytes"
            );
            (3..=4).for_each(|epoch| append(&mut writer, epoch));
            assert_eq!(names(&directory), [name(1, 3)]);
            drop(writer);
            let mut writer = RangeWriter::new(sink.clone());
            assert_eq!(writer.begin().unwrap(), OutletContent { whole: 3, last: Some(stamp(3)) });
            append(&mut writer, 4);
            writer.settle().unwrap();
            assert_eq!(names(&directory), [name(1, 3), name(4, 6)]);
            drop(writer);
            fs::write(directory.join(name(7, 9)), "not ours").unwrap();
            assert!(RangeWriter::new(sink).begin().is_err());
        }
    }

    /// Estimates of windows that end after many epochs leave ranges without rows.
    #[test]
    fn a_range_without_rows_has_no_file() {
        let format = TableFormat::Parquet;
        if format.missing().is_some() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let sink = RangeDirectory { directory: folder.path().join("out"), format, epochs: 2 };
        let mut writer = RangeWriter::new(sink.clone());
        writer.begin().unwrap();
        for epoch in 1..=6 {
            let records = [record(epoch, "a")];
            writer.append(&stamp(epoch), &records[..usize::from(epoch == 3)]).unwrap();
        }
        writer.settle().unwrap();
        assert_eq!(names(&sink.directory), [EpochRange { first: 3, last: 4 }.name(format)]);
        drop(writer);
        let found = RangeWriter::new(sink).begin().unwrap();
        assert_eq!(found, OutletContent { whole: 4, last: Some(stamp(4)) });
    }

    #[test]
    fn names_of_other_files_are_ignored() {
        let of = |name| EpochRange::of(name, TableFormat::Parquet);
        assert_eq!(of("epochs-0000000001-0000000003.parquet"), Some(EpochRange { first: 1, last: 3 }));
        let others =
            ["epochs-1-3.arrow", ".epochs-1-3.parquet.tmp", "epochs-3-1.parquet", "epochs-0-1.parquet", "x"];
        assert!(others.iter().all(|name| of(name).is_none()));
    }
}
