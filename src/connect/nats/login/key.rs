//! NKeys: Ed25519 keys of NATS in base 32, with a prefix for their role and a checksum
//! (`github.com/nats-io/nkeys`).

use data_encoding::BASE32_NOPAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use zeroize::Zeroizing;

use crate::security::{SecretReference, SecurityError};

/// Prefix bytes: of a seed (5 bits) and of a user (8 bits).
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

/// Two bytes of prefixes, the seed, and a checksum.
const LENGTH: usize = 2 + 32 + 2;

/// The key of a user.
pub(super) struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Decodes the seed of a user, which `reference` names.
    ///
    /// # Errors
    /// If the text is not a seed of a user.
    pub(super) fn of_seed(text: &str, reference: &SecretReference) -> Result<Self, SecurityError> {
        Self::decoded(text).ok_or_else(|| reference.unusable("the seed of a NATS user (SU…)"))
    }

    fn decoded(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(BASE32_NOPAD.decode(text.as_bytes()).ok()?);
        let (content, sum) = bytes.split_at_checked(LENGTH - 2)?;
        let role = content[0] << 5 | content[1] >> 3;
        let is_whole = sum == checksum(content).to_le_bytes();
        let is_user = content[0] & 0xf8 == SEED && role == USER;
        (is_whole && is_user)
            .then(|| Ed25519KeyPair::from_seed_unchecked(&content[2..]).ok().map(SigningKey))?
    }

    /// The user's name: the public key.
    pub(super) fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend(self.0.public_key().as_ref());
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        BASE32_NOPAD.encode(&bytes)
    }

    pub(super) fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().to_vec()
    }
}

/// CRC-16/XMODEM.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum: u16, &byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| match sum & 0x8000 {
            0 => sum << 1,
            _ => sum << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair of keys of the documentation of NATS.
    const SEED_TEXT: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const PUBLIC: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn a_seed_gives_the_public_key_of_its_user() {
        let key = SigningKey::decoded(SEED_TEXT).unwrap();
        assert_eq!(key.public(), PUBLIC);
        let verifier = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key.0.public_key());
        assert!(verifier.verify(b"nonce", &key.sign(b"nonce")).is_ok());
    }

    #[test]
    fn other_texts_are_no_seeds() {
        let mut typo = SEED_TEXT.to_owned();
        typo.replace_range(20..21, "B");
        for text in ["", "SU", PUBLIC, &typo, &SEED_TEXT[..57], &SEED_TEXT.to_lowercase(), &"A".repeat(4096)]
        {
            assert!(SigningKey::decoded(text).is_none(), "{text}");
        }
    }
}
