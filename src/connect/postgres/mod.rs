//! PostgreSQL: a table or query as a source, polled by a column that only grows, and a table as a
//! sink.

#[cfg(feature = "postgres")]
mod checks;
#[cfg(feature = "postgres")]
mod connection;
#[cfg(feature = "postgres")]
mod login;
#[cfg(feature = "postgres")]
mod reader;
#[cfg(feature = "postgres")]
mod relation;
#[cfg(feature = "postgres")]
mod section;
#[cfg(feature = "postgres")]
mod settle;
#[cfg(feature = "postgres")]
mod writer;

use super::security::{TLS_CLIENT_FIELDS, TLS_FIELDS, USER_FIELDS};
use super::{PositionParts, System};
#[cfg(not(feature = "postgres"))]
use super::{without_client as sink, without_client as source};
use crate::document::definition::{FieldDefinition, FieldType};
#[cfg(feature = "postgres")]
use section::{sink, source};

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "postgres://host:port/database",
    full_path: "postgres://host[:port]/database",
    has_fields: true,
    tags: &[PositionParts::InOrder.tag(9)],
    source_fields: &[
        FieldDefinition::optional(
            "table",
            FieldType::Text,
            "required, or `query`",
            "\"public.flights\"",
            "Table or view to read.",
        ),
        FieldDefinition::optional(
            "query",
            FieldType::Text,
            "required, or `table`",
            "\"SELECT * FROM flights WHERE NOT test\"",
            "Query whose rows are read.",
        ),
        FieldDefinition::required(
            "order",
            FieldType::Text,
            "\"id\"",
            "Column that only grows: an identity or sequence, or a `timestamptz`. Rows are read in its order.",
        ),
    ],
    source: Some(source),
    sink_fields: &[
        FieldDefinition::required(
            "table",
            FieldType::Text,
            "\"public.releases\"",
            "Table that receives a row for every key, epoch and statistic. It is created if it is missing.",
        ),
        FieldDefinition::optional(
            "dataset",
            FieldType::Text,
            "the name of the table",
            "\"flights\"",
            "Name in the column `dataset`, by which several pipelines share a table.",
        ),
    ],
    sink: Some(sink),
    security: &[(TLS_FIELDS, SCHEMES), (TLS_CLIENT_FIELDS, SCHEMES), (USER_FIELDS, SCHEMES)],
    ..System::NONE
};

const SCHEMES: &[&str] = &["postgres"];
