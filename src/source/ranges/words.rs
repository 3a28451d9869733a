//! Words on their way to another process: one run of bytes, because number by number they would
//! take several times as long.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Words that are sent as bytes, the lowest first.
#[derive(Clone, Default)]
pub(crate) struct Words(pub(crate) Vec<u64>);

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if cfg!(target_endian = "little") {
            return serializer.serialize_bytes(bytemuck::cast_slice(&self.0));
        }
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(WordVisitor)
    }
}

struct WordVisitor;

impl Visitor<'_> for WordVisitor {
    type Value = Words;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("words of eight bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Words, E> {
        match bytes.as_chunks() {
            (words, []) => Ok(Words(words.iter().map(|&word| u64::from_le_bytes(word)).collect())),
            _ => Err(E::invalid_length(bytes.len(), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_were_sent() {
        for words in [vec![], vec![0, 1, u64::MAX, 0x0102_0304_0506_0708]] {
            let bytes = bincode::serialize(&Words(words.clone())).unwrap();
            assert_eq!(bytes.len(), 8 + 8 * words.len());
            assert_eq!(bincode::deserialize::<Words>(&bytes).unwrap().0, words);
            assert!(words.is_empty() || bincode::deserialize::<Words>(&bytes[..bytes.len() - 1]).is_err());
        }
        assert!(bincode::deserialize::<Words>(&bincode::serialize(&vec![7u8; 9]).unwrap()).is_err());
    }
}
