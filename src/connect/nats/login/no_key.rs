//! Replacement for NKeys in builds without TLS: the TLS library makes the signatures.

use crate::security::{SecretReference, SecurityError};

/// A signing key; without TLS no value exists.
pub(super) enum SigningKey {}

impl SigningKey {
    pub(super) fn of_seed(_: &str, _: &SecretReference) -> Result<Self, SecurityError> {
        Err(SecurityError::Without)
    }

    pub(super) fn public(&self) -> String {
        match *self {}
    }

    pub(super) fn sign(&self, _: &[u8]) -> Vec<u8> {
        match *self {}
    }
}
