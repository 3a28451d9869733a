//! SASL mechanisms by which a user of Kafka proves its password.

use crate::document::definition::{FieldDefinition, FieldType, Word, forms, word};

/// A mechanism of SASL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mechanism {
    Plain,
    Scram256,
    #[default]
    Scram512,
}

/// Words of `sasl`.
pub(super) const MECHANISMS: &[Word<Mechanism>] = &[
    word("scram-sha-512", Mechanism::Scram512, "SCRAM with SHA-512, which does not send the password."),
    word("scram-sha-256", Mechanism::Scram256, "SCRAM with SHA-256, which does not send the password."),
    word("plain", Mechanism::Plain, "The password is sent as it is, so it needs `tls = true`."),
];

/// `sasl` of a source or a sink.
pub(super) const SASL: FieldDefinition = FieldDefinition::with_default(
    "sasl",
    FieldType::Words(|| forms(MECHANISMS)),
    "\"scram-sha-512\"",
    "\"plain\"",
    "How the user proves its password.",
);
