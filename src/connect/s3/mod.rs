//! Object stores that speak S3's protocol: objects as files, and tables of releases. The client is
//! `object_store`, behind the feature `s3`.
//!
//! Objects never change: an object with the same key and another ETag is another object.

#[cfg(feature = "s3")]
mod bucket;
#[cfg(feature = "s3")]
mod client;
#[cfg(feature = "s3")]
mod reader;
#[cfg(feature = "s3")]
mod writer;

use super::files::tables::TABLE_FORMATS;
use super::security::{TLS_ROOTS, USER_FIELDS};
use super::{PositionParts, PositionTag, SIZE, System};
#[cfg(not(feature = "s3"))]
use super::{without_client as sink, without_client as source};
use crate::document::definition::{FieldDefinition, FieldType, forms};
#[cfg(feature = "s3")]
use bucket::{sink, source};

/// Tag of text objects.
const TEXT: PositionTag = PositionParts::Listed.tag(10);
/// Tag of Parquet objects, with a row group and a row in it.
const PARQUET: PositionTag = PositionParts::Listed.tag(11);

const SCHEMES: &[&str] = &["s3"];

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "s3://bucket/folder/*.csv",
    has_fields: false,
    tags: &[TEXT, PARQUET],
    source_fields: &[
        FieldDefinition::with_default(
            "follow",
            FieldType::Flag,
            "false",
            "true",
            "Whether new objects that fit the pattern in `path` are read as they come.",
        ),
        ENDPOINT,
        REGION,
        TLS_ROOTS,
    ],
    source: Some(source),
    sink_fields: &[
        FieldDefinition::with_default(
            "format",
            FieldType::Words(|| forms(TABLE_FORMATS)),
            "\"parquet\"",
            "\"parquet\"",
            "What is written.",
        ),
        FieldDefinition::with_default(
            "rotate",
            FieldType::Pattern("a number of epochs such as \"100 epochs\"", SIZE),
            "\"100 epochs\"",
            "\"1000 epochs\"",
            "Number of epochs in an object.",
        ),
        ENDPOINT,
        REGION,
        TLS_ROOTS,
    ],
    sink: Some(sink),
    security: &[(USER_FIELDS, SCHEMES)],
    ..System::NONE
};

const ENDPOINT: FieldDefinition = FieldDefinition::optional(
    "endpoint",
    FieldType::Pattern(
        "the address of a store, such as \"https://host:9000\", without a user",
        "^https?://[^/@?#]+",
    ),
    "the service of AWS in the region",
    "\"https://minio.example.org:9000\"",
    "Address of an object store. One with http:// is not encrypted.",
);

const REGION: FieldDefinition = FieldDefinition::optional(
    "region",
    FieldType::Text,
    "AWS_REGION, or us-east-1",
    "\"eu-central-1\"",
    "Region of the bucket.",
);

#[cfg(all(test, not(feature = "s3")))]
mod tests {
    use crate::connect::fake::{sink_of, source_of};

    #[test]
    fn a_build_without_s3_reports_it() {
        let bucket = "path = 's3://b/a.csv'";
        assert!(source_of(bucket).is_err_and(|error| error.contains("--features s3")));
        assert!(sink_of(bucket).is_err_and(|error| error.contains("--features s3")));
    }
}
