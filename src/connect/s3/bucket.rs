//! Sections of a pipeline file that name objects.

use std::path::PathBuf;
use std::sync::Arc;

use super::client::{BucketClient, is_address, is_visible};
use super::{reader, writer};
use crate::connect::files::tables::{RangeWriter, TABLE_FORMATS, TableFormat};
use crate::connect::files::{Rotation, agrees, rotation};
use crate::connect::security::{Login, holds_secret};
use crate::connect::{
    AllowedFormats, Origin, OriginRequest, RequestError, SinkConfig, SinkTarget, SourceConfig, SourceError,
    SystemSection, report_sink, report_source,
};
use crate::control::Control;
use crate::format::Format;

/// Default number of epochs in an object.
const DEFAULT_EPOCHS: u64 = 100;

/// A bucket and its connection settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) name: String,
    /// `endpoint`: the address of the store; that of AWS if absent.
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    /// `tls_roots`: the file of the roots to trust.
    pub(super) roots: Option<PathBuf>,
    /// The id of an access key and its secret; those of the environment if absent.
    pub(super) login: Login,
}

/// `[source]` with objects: all objects of a folder whose names match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectSource {
    pub(super) bucket: Bucket,
    /// Prefix of the keys, up to the last slash; empty at the top.
    pub(super) folder: String,
    pattern: String,
    /// `follow`: whether new objects are read as they come.
    pub(super) follows: bool,
}

/// `[[sinks]]` with objects: tables of a range of epochs each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectSink {
    bucket: Bucket,
    folder: String,
    format: TableFormat,
    epochs: u64,
}

impl Bucket {
    /// Reads the bucket of a section, and the key after it; `None` if they can't be used.
    fn read<'a>(settings: &SystemSection<'_, 'a>) -> Option<(Self, &'a str)> {
        let section = settings.section;
        let login = Login::with_password(settings);
        if section.has("password_env") || section.has("password_file") {
            let is_named = section.has("user");
            if !is_named {
                settings.path.report("a secret key needs the id of its access key: add user = \"…\"");
                return None;
            }
        }
        let endpoint = section.text("endpoint").and_then(|endpoint| {
            if !is_address(endpoint.value) || holds_secret(endpoint.value) {
                endpoint
                    .report("expected the address of a store, such as \"https://host:9000\", without a user");
                return None;
            }
            Some(String::from(endpoint.value.trim_end_matches('/')))
        });
        if section.has("endpoint") && endpoint.is_none() {
            return None;
        }
        for key in ["user", "region"] {
            if let Some(text) = section.text(key).filter(|text| !is_visible(text.value)) {
                text.report("expected letters, digits and signs, without blanks");
                return None;
            }
        }
        let region = section.text("region").map(|region| region.value.into());
        let roots = section.text("tls_roots").map(|path| settings.base.join(path.value));
        let (name, key) = settings.rest.split_once('/').unwrap_or((settings.rest, ""));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_bucket = (3..=63).contains(&name.len()) && name.chars().all(is_name);
        is_bucket.then_some((Bucket { name: name.into(), endpoint, region, roots, login }, key))
    }
}

pub(super) fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let follows = settings.section.flag("follow").unwrap_or(false);
    let found = Bucket::read(settings).and_then(|(bucket, key)| {
        let (folder, pattern) = key.rsplit_once('/').unwrap_or(("", key));
        let is_plain = !folder.contains(['*', '?']) && is_key(folder) && is_key(pattern);
        (!pattern.is_empty() && is_plain).then(|| (bucket, folder.into(), pattern.into()))
    });
    let Some((bucket, folder, pattern)) = found else {
        report_source(settings.path);
        return None;
    };
    Some(Arc::new(ObjectSource { bucket, folder, pattern, follows }))
}

pub(super) fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let section = settings.section;
    let format = section.word("format", TABLE_FORMATS).unwrap_or(TableFormat::Parquet);
    if let Some(missing) = format.missing() {
        settings.path.report(missing);
        return None;
    }
    let epochs = match section.form("rotate", rotation) {
        None => DEFAULT_EPOCHS,
        Some(Rotation::Epochs(epochs)) => epochs,
        Some(Rotation::Bytes(_)) => {
            section.refuse("rotate", "an object has a number of epochs, such as \"100 epochs\"");
            return None;
        }
    };
    let found = Bucket::read(settings).filter(|(_, folder)| is_key(folder));
    let Some((bucket, folder)) = found else {
        report_sink(settings.path);
        return None;
    };
    let folder = folder.trim_end_matches('/').into();
    Some(Arc::new(ObjectSink { bucket, folder, format, epochs }))
}

/// Whether a key, or a part of one, is the same in every request: it has no empty parts, parts `.`
/// or `..`, or control characters.
fn is_key(key: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "." | "..") && !part.contains(char::is_control);
    let key = key.trim_end_matches('/');
    key.is_empty() || key.split('/').all(|part| !part.is_empty() && is_part(part))
}

impl ObjectSource {
    /// Whether the name of an object in the folder matches. Hidden objects match only if the
    /// pattern begins with a dot.
    pub(super) fn names(&self, name: &str) -> bool {
        let is_hidden = name.starts_with('.') && !self.pattern.starts_with('.');
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        !is_hidden && agrees(&chars(&self.pattern), &chars(name))
    }
}

fn address(bucket: &Bucket, folder: &str, name: &str) -> String {
    let slash = if folder.is_empty() { "" } else { "/" };
    format!("s3://{}/{folder}{slash}{name}", bucket.name)
}

impl SourceConfig for ObjectSource {
    fn name(&self) -> String {
        address(&self.bucket, &self.folder, &self.pattern)
    }

    fn formats(&self) -> AllowedFormats {
        AllowedFormats { allowed: &[Format::COMMAS, Format::Ndjson, Format::Parquet], ..AllowedFormats::TEXT }
    }

    fn kind(&self, format: Format) -> usize {
        usize::from(format == Format::Parquet)
    }

    fn identity(&self) -> Option<Vec<u8>> {
        Some(self.name().into_bytes())
    }

    fn keeps_list(&self) -> bool {
        true
    }

    fn opens_anywhere(&self) -> bool {
        true
    }

    fn is_endless(&self) -> bool {
        self.follows
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        reader::open(self, opening)
    }
}

impl SinkConfig for ObjectSink {
    fn probe(&self, control: &Control) -> Result<(), RequestError> {
        BucketClient::new(&self.bucket, self.name(), control).list(&self.folder).map(drop)
    }

    fn name(&self) -> String {
        address(&self.bucket, &self.folder, "")
    }

    fn destination(&self) -> Option<String> {
        Some(format!("{} {}", self.bucket.endpoint.as_deref().unwrap_or_default(), self.name()))
    }

    fn target(&self, control: &Control) -> SinkTarget {
        let client = BucketClient::new(&self.bucket, self.name(), control);
        let folder = writer::ObjectFolder::new(client, self.folder.clone());
        SinkTarget::Records(Box::new(RangeWriter::to(folder, self.format, self.epochs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::fake::{sink_of, source_of};

    #[test]
    fn paths_name_a_bucket_and_a_pattern() {
        let name = |fields: &str| source_of(&format!("path = {fields}")).map(|(input, _)| input.to_string());
        assert_eq!(name("'s3://logs/2026/*.csv.gz'"), Ok("s3://logs/2026/*.csv.gz".into()));
        assert_eq!(name("'s3://logs/a.parquet'"), Ok("s3://logs/a.parquet".into()));
        for path in [
            "s3://logs",
            "s3://logs/",
            "s3://l/a.csv",
            "s3://a b/a.csv",
            "s3://logs/*/a.csv",
            "s3://logs/./a.csv",
        ] {
            assert!(name(&format!("'{path}'")).is_err_and(|error| error.contains("s3://bucket")), "{path}");
        }
        let check = |fields: &str, part: &str| {
            let refused = source_of(&format!("path = 's3://logs/a.csv', {fields}")).unwrap_err();
            assert!(refused.contains(part) && !refused.contains("hidden"), "{refused}");
        };
        check("endpoint = 'https://u:hidden@h'", "without a user");
        check("endpoint = 'h:9000'", "https://host:9000");
        check("endpoint = 'https://h:hidden'", "https://host:9000");
        check("endpoint = 'https://'", "https://host:9000");
        check("region = 'a b'", "without blanks");
        check("user = 'ü', password_env = 'P'", "without blanks");
        check("user = 'u'", "password_file");
        check("password_env = 'P'", "add user");
        assert!(sink_of("path = 's3://logs/out', rotate = '5 MiB'").is_err());
        assert!(sink_of("path = 's3://logs/out', rotate = '5 epochs'").is_ok());
    }

    #[test]
    fn names_fit_a_pattern_of_one_folder() {
        let (input, _) = source_of("path = 's3://logs/a/*.csv'").unwrap();
        let source: &dyn std::any::Any = input.source();
        assert!(
            source
                .downcast_ref::<ObjectSource>()
                .is_none_or(|source| source.names("b.csv") && !source.names(".b.csv"))
        );
    }
}
