//! Files as sources, listed or followed, and files of JSON lines and tables as sinks.

mod follow;
mod listed;
pub(super) mod tables;
mod writer;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Access;

use super::{
    AllowedFormats, FileCut, Origin, OriginRequest, PositionParts, PositionTag, RequestError, SinkConfig,
    SinkTarget, SourceConfig, SourceError, System, SystemSection, TextField,
};
use crate::control::Control;
use crate::document::definition::{FieldDefinition, FieldType, Word, forms, word};
use crate::format::Format;
use crate::format::form::RowLayout;
use tables::TableFormat;

/// Tag of files that the pipeline file lists.
pub(super) const TAG: PositionTag = PositionParts::InOrder.tag(0);
/// Tag of files that are followed.
const FOLLOWED: PositionTag = PositionParts::Listed.tag(2);
/// Tag of listed Parquet files, with a row group and a row in it.
const PARQUET: PositionTag = PositionParts::InOrder.tag(5);

pub(super) const SYSTEM: System = System {
    schemes: &[""],
    tags: &[TAG, FOLLOWED, PARQUET],
    source_fields: &[FieldDefinition::with_default(
        "follow",
        FieldType::Flag,
        "false",
        "true",
        "Whether files that grow, and new ones of the directory or pattern in `path`, are read as they come.",
    )],
    source: Some(source),
    sink_fields: &[
        FieldDefinition::with_default(
            "format",
            FieldType::Words(|| forms(FORMATS)),
            "\"ndjson\"",
            "\"parquet\"",
            "What is written.",
        ),
        FieldDefinition::optional(
            "rotate",
            FieldType::Pattern("a size such as \"100 epochs\", \"64 MiB\" or \"1 GiB\"", super::SIZE),
            "a file of lines grows without limit; a file of a table has 100 epochs",
            "\"100 epochs\"",
            "When a new file is started.",
        ),
    ],
    sink: Some(sink),
    ..System::NONE
};

/// Forms of the output of a sink: lines, or tables in a format.
const FORMATS: &[Word<Option<TableFormat>>] = &[
    word("ndjson", None, "A file of JSON lines."),
    word("parquet", Some(TableFormat::Parquet), "A directory of Parquet files, each of a range of epochs."),
    word("arrow", Some(TableFormat::Arrow), "The same in Arrow's IPC format (Feather)."),
];

/// Epochs in a file of a table.
const TABLE_EPOCHS: u64 = 100;

/// Listed files, read one after the other as one stream.
#[derive(Debug, PartialEq, Eq)]
struct ListedFiles(Vec<PathBuf>);

/// `follow = true`: files of a directory that are read as they grow and as new ones appear.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FollowedDirectory {
    directory: PathBuf,
    /// Pattern of file names: `*` matches any text, `?` any one character.
    pattern: String,
}

/// A file of JSON lines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReleaseFile {
    path: PathBuf,
    /// `rotate`: when a new file is started.
    rotate: Option<Rotation>,
}

/// A directory of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RangeDirectory {
    directory: PathBuf,
    format: TableFormat,
    /// `rotate`: the number of epochs in a file.
    epochs: u64,
}

/// Condition for starting a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// After this number of epochs.
    Epochs(u64),
    /// Before the file exceeds this number of bytes; a single epoch may exceed it.
    Bytes(u64),
}

fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    if !settings.section.flag("follow").unwrap_or(false) {
        return listed(settings);
    }
    if let Some(second) = settings.paths.get(1) {
        second.report("only one directory or pattern can be followed, such as path = \"log/*.csv\"");
        return None;
    }
    followed(settings.path, settings.base)
}

/// Reads paths of files, which need not exist yet.
fn listed(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let is_followed = |path: &&TextField<'_>| {
        let full = settings.base.join(path.value);
        full.is_dir() || (path.value.contains(['*', '?']) && !full.exists())
    };
    match settings.paths.iter().find(is_followed) {
        None => {
            let paths = settings.paths.iter().map(|path| settings.base.join(path.value));
            Some(Arc::new(ListedFiles(paths.collect())))
        }
        Some(path) => {
            path.report(
                "a directory or a pattern must be followed: add follow = true (and end the run by --until-idle or a signal)",
            );
            None
        }
    }
}

/// Reads a followed path: a directory, a pattern of names in one, or a single file.
fn followed(path: &TextField<'_>, base: &Path) -> Option<Arc<dyn SourceConfig>> {
    let full = base.join(path.value);
    if full.is_dir() {
        return Some(Arc::new(FollowedDirectory { directory: full, pattern: "*".into() }));
    }
    let pattern = full.file_name().and_then(|name| name.to_str()).map(String::from);
    let directory = full.parent().map(|directory| match directory.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => directory.into(),
    });
    match (pattern, directory) {
        (Some(pattern), Some(directory)) if !directory.to_string_lossy().contains(['*', '?']) => {
            Some(Arc::new(FollowedDirectory { directory, pattern }))
        }
        _ => {
            path.report("expected a directory, or a pattern of names in one such as \"log/*.csv\"");
            None
        }
    }
}

impl SourceConfig for ListedFiles {
    fn name(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    }

    fn files(&self) -> Option<&[PathBuf]> {
        Some(&self.0)
    }

    fn formats(&self) -> AllowedFormats {
        AllowedFormats { allowed: &[Format::COMMAS, Format::Ndjson, Format::Parquet], ..AllowedFormats::TEXT }
    }

    fn kind(&self, format: Format) -> usize {
        if format == Format::Parquet { 2 } else { 0 }
    }

    fn ranges(&self, shape: &RowLayout, control: &Control) -> Option<Box<dyn Origin>> {
        Some(listed::files(&self.0, shape, vec![false; self.0.len()], control))
    }

    fn cuts(&self, shape: &RowLayout) -> Vec<FileCut> {
        self.0.iter().map(|path| listed::cut(path, shape)).collect()
    }

    fn is_endless(&self) -> bool {
        false
    }

    fn is_live(&self) -> bool {
        let is_pipe = |path: &PathBuf| path.metadata().is_ok_and(|found| !found.is_file());
        self.0.iter().any(is_pipe)
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        listed::open(&self.0, opening)
    }
}

impl SourceConfig for FollowedDirectory {
    fn name(&self) -> String {
        self.directory.join(&self.pattern).display().to_string()
    }

    fn formats(&self) -> AllowedFormats {
        AllowedFormats::TEXT
    }

    fn kind(&self, _format: Format) -> usize {
        1
    }

    fn keeps_list(&self) -> bool {
        true
    }

    fn opens_anywhere(&self) -> bool {
        true
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        follow::open(self, opening)
    }
}

impl FollowedDirectory {
    /// Whether a file name matches. Hidden files match only if the pattern begins with a dot.
    fn names(&self, name: &str) -> bool {
        let hidden = name.starts_with('.') && !self.pattern.starts_with('.');
        let (pattern, name): (Vec<char>, Vec<char>) =
            (self.pattern.chars().collect(), name.chars().collect());
        !hidden && agrees(&pattern, &name)
    }
}

/// Whether `name` matches a pattern of `*` and `?`. On a mismatch, the last `*` matches one more
/// character.
pub(super) fn agrees(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                None => return false,
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let rotate = settings.section.form("rotate", rotation);
    if let Some(format) = settings.section.word("format", FORMATS).flatten() {
        return table_sink(settings, format, rotate);
    }
    let path = settings
        .section
        .text("path")?
        .filter("a file of JSON lines, such as \"out/releases.ndjson\"", |path| {
            Path::new(path).extension().is_some_and(|end| end == "ndjson" || end == "jsonl")
        })?;
    Some(Arc::new(ReleaseFile { path: settings.base.join(path.value), rotate }))
}

fn table_sink(
    settings: &SystemSection<'_, '_>,
    format: TableFormat,
    rotate: Option<Rotation>,
) -> Option<Arc<dyn SinkConfig>> {
    if let Some(missing) = format.missing() {
        settings.section.refuse("format", missing);
        return None;
    }
    let epochs = match rotate {
        None => TABLE_EPOCHS,
        Some(Rotation::Epochs(epochs)) => epochs,
        Some(Rotation::Bytes(_)) => {
            settings
                .section
                .refuse("rotate", "a file of a table has a number of epochs, such as \"100 epochs\"");
            return None;
        }
    };
    let directory = settings.base.join(settings.path.value);
    if directory.is_file() {
        settings
            .path
            .report("expected a directory, such as \"out/releases\", which is made if it is missing");
        return None;
    }
    Some(Arc::new(RangeDirectory { directory, format, epochs }))
}

pub(super) fn rotation(text: &str) -> Option<Rotation> {
    let units = [("epochs", 0), ("epoch", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];
    units.iter().find_map(|&(unit, shift)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok().filter(|&number| number > 0)?;
        if shift == 0 {
            Some(Rotation::Epochs(number))
        } else {
            number.checked_mul(1 << shift).map(Rotation::Bytes)
        }
    })
}

impl SinkConfig for ReleaseFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn target(&self, _control: &Control) -> SinkTarget {
        SinkTarget::Lines(Box::new(writer::ReleaseFileWriter::new(self.clone())))
    }

    fn probe(&self, _control: &Control) -> Result<(), RequestError> {
        match self.path.exists() {
            true => Ok(File::options().append(true).open(&self.path).map(drop)?),
            false => probe_directory(self.path.parent().unwrap_or(&self.path)),
        }
    }
}

impl SinkConfig for RangeDirectory {
    fn name(&self) -> String {
        self.directory.display().to_string()
    }

    fn target(&self, _control: &Control) -> SinkTarget {
        SinkTarget::Records(Box::new(tables::RangeWriter::new(self.clone())))
    }

    fn probe(&self, _control: &Control) -> Result<(), RequestError> {
        probe_directory(&self.directory)
    }
}

/// Checks that files can be created in a directory, or the directory itself if it is missing.
fn probe_directory(directory: &Path) -> Result<(), RequestError> {
    let mut existing = directory;
    while let Some(parent) = existing.parent().filter(|_| !existing.exists()) {
        existing = parent;
    }
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    if existing.is_file() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory).into());
    }
    let needed = Access::WRITE_OK | Access::EXEC_OK;
    Ok(rustix::fs::access(existing, needed).map_err(io::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Input;
    use crate::connect::fake::{sink_of, source_of};

    #[test]
    fn paths_are_listed_or_followed() {
        let check = |source: &str, expected: Option<Arc<dyn SourceConfig>>| {
            let expected = expected.map(|source| Input { system: &SYSTEM, source });
            assert_eq!(source_of(source).ok().map(|(input, _)| input), expected, "{source}");
        };
        let listed = ListedFiles(vec!["dir/a.csv".into(), "dir/b.csv".into()]);
        check("path = ['a.csv', 'b.csv']", Some(Arc::new(listed)));
        let followed = FollowedDirectory { directory: "dir/log".into(), pattern: "*.csv".into() };
        check("path = 'log/*.csv', follow = true", Some(Arc::new(followed)));
        check("path = '*/a.csv', follow = true", None);
        check("path = ['a.csv', 'b.csv'], follow = true", None);
        check("path = 'log/*.csv'", None);
        check("path = '/', format = 'csv'", None);
        for (source, part) in [
            ("path = 'log/*.csv'", "add follow = true"),
            ("path = '/', format = 'csv'", "add follow = true"),
            ("path = '-', format = 'csv', follow = true", "leave it out"),
        ] {
            assert!(source_of(source).is_err_and(|error| error.contains(part)), "{source}");
        }
    }

    #[test]
    fn a_parquet_file_is_whole() {
        let refused = |source: &str| source_of(source).unwrap_err();
        assert!(refused("path = 'a.parquet', follow = true").contains("must be complete"));
        assert!(refused("path = '-', format = 'parquet'").contains("must be complete"));
        let formats = source_of("path = ['a.parquet', 'b.parquet']").map(|(_, format)| format);
        assert_eq!(formats, Ok(Format::Parquet));
    }

    #[test]
    fn patterns_match_names() {
        let check = |pattern: &str, name, expected| {
            let followed = FollowedDirectory { directory: PathBuf::new(), pattern: pattern.into() };
            assert_eq!(followed.names(name), expected, "{pattern} {name}");
        };
        check("*.csv", "a.csv", true);
        check("*.csv", "a.csv.tmp", false);
        check("*.csv", ".a.csv", false);
        check(".*", ".a", true);
        check("a*b?c*", "axxbbyc", true);
        check("a*b?c*", "axxbyyc", false);
        check("a.csv", "a.csv", true);
        check("a.csv", "a_csv", false);
        check("*", "", true);
        check("?", "", false);
    }

    #[test]
    fn sizes_are_read() {
        let check = |text, expected| assert_eq!(rotation(text), expected, "{text}");
        check("100 epochs", Some(Rotation::Epochs(100)));
        check("1epoch", Some(Rotation::Epochs(1)));
        check("64 MiB", Some(Rotation::Bytes(64 << 20)));
        check("1 GiB", Some(Rotation::Bytes(1 << 30)));
        check("99999999999999 GiB", None);
        check("0 epochs", None);
        check("10", None);
        check("-1 MiB", None);
    }

    #[test]
    fn a_sink_is_a_file_of_lines() {
        for (sink, part) in [
            ("path = 'a.csv'", "expected a file of JSON lines"),
            ("path = 'a.ndjson', stream = 's'", "leave it out"),
            ("path = 'a.ndjson', rotate = '10'", "expected a size"),
            ("path = 'nats://h', stream = 's', rotate = '5 epochs'", "is for files"),
        ] {
            assert!(sink_of(sink).is_err_and(|error| error.contains(part)), "{sink}");
        }
    }
}
