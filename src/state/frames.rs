//! Types of the state's interface and the payloads of frames.
//!
//! Types that hold exact sums have no `Debug` and no `Display`, and wipe the sums when dropped.

use super::{
    chain::{ChainLink, HistoryStamp},
    error::StateError,
    format::{FRAME_HEADER_LENGTH, FrameHeader, MAX_PAYLOAD, kind},
    integers::unpack,
};
use bincode::{DefaultOptions, ErrorKind, Options};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use zeroize::Zeroizing;

/// Public parameters of a log, known before its first release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicHeader {
    /// The public parameters as text (TOML or JSON); opaque to the state, which compares them byte
    /// by byte.
    pub parameters: Vec<u8>,
    /// False if a seeded generator made the noise: such releases give no privacy.
    pub private: bool,
}

impl PublicHeader {
    /// Returns the first link of the log with this header.
    pub(super) fn fingerprint(&self) -> Result<ChainLink, StateError> {
        Ok(ChainLink::of_header(&self.payload()?))
    }

    /// Returns the payload of its frame.
    pub(super) fn payload(&self) -> Result<Vec<u8>, StateError> {
        Ok(encode(kind::HEADER, 0, self)?[FRAME_HEADER_LENGTH..].to_vec())
    }
}

/// A position between two rows of a source. The source alone interprets the numbers; see
/// `docs/formats.md`. Every source is read in the order of (part, offset, row).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Number from 0 of the part that holds the next row: a file, or a session of the journal.
    pub part: u32,
    /// Offset in the part at which the source begins to read: the number of bytes in a text (in a
    /// session, after its header), the row group of a Parquet file, or the number or time of an
    /// entry.
    pub offset: u64,
    /// The next row: its line in a text, from 1; in Parquet and Redis its number at that offset.
    pub row: u64,
}

impl Position {
    /// Before the first row.
    pub const START: Position = Position { part: 0, offset: 0, row: 1 };

    /// Position of the first row at an offset.
    pub fn new(part: u32, offset: u64) -> Self {
        Position { part, offset, row: 1 }
    }
}

/// Progress in one partition of a source.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePosition {
    /// The partition, numbered by its source.
    pub partition: u32,
    /// Offset of the next read, in the source's own unit.
    pub offset: u64,
    /// Other data that the source needs to continue; opaque to the state.
    #[serde(serialize_with = "as_bytes")]
    pub payload: Vec<u8>,
}

/// Prints the partition, but not the position in it.
impl fmt::Debug for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcePosition").field("partition", &self.partition).finish_non_exhaustive()
    }
}

/// An epoch as the private log holds it. It can't be printed:
///
/// ```compile_fail
/// fn print(frame: &hushflow::state::EpochFrame) -> String { format!("{frame:?}") }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EpochFrame {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Source positions when the epoch closed.
    pub positions: Vec<SourcePosition>,
    /// The exact sums of all keys and blocks, in grid units. Secret.
    pub sums: Zeroizing<Vec<i128>>,
    /// The release y = C·sums + noise, in grid units. Secret until it is committed.
    pub values: Vec<i128>,
    /// Hashes of the participants, if entities are protected. Secret.
    pub admitted: Option<Zeroizing<Vec<u128>>>,
}

/// An epoch as the public log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseFrame {
    /// The run that drew the noise, from 1.
    pub generation: u64,
    /// The epoch, from 1.
    pub epoch: u64,
    /// The release y, in grid units.
    pub values: Vec<i128>,
    /// The link of the history up to here.
    pub chain: ChainLink,
}

impl ReleaseFrame {
    /// Returns the generation and link that distinguish this release from other releases of the
    /// same epoch.
    pub fn stamp(&self) -> HistoryStamp {
        HistoryStamp { generation: self.generation, chain: self.chain }
    }
}

/// The encoder's state after an epoch, and all other state from which replay starts.
#[derive(Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last epoch it contains.
    pub epoch: u64,
    /// The state, opaque here. Secret.
    pub bytes: Zeroizing<Vec<u8>>,
}

/// Payload of a segment frame: the state before the segment.
#[derive(Serialize, Deserialize)]
pub(super) struct SegmentPayload {
    pub(super) segment: u64,
    pub(super) begun: u64,
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) chain: ChainLink,
    pub(super) positions: Vec<SourcePosition>,
}

impl SegmentPayload {
    /// Builds the payload of the first segment of a log with this header.
    pub(super) fn first(header: &PublicHeader, begun: u64) -> Result<Self, StateError> {
        let chain = header.fingerprint()?;
        Ok(Self { segment: 1, begun, generation: 0, epoch: 0, chain, positions: Vec::new() })
    }
}

/// Payload of a generation frame.
#[derive(Serialize, Deserialize)]
pub(super) struct GenerationPayload {
    pub(super) generation: u64,
}

/// Payload of an epoch frame without its link; sums and values are packed.
#[derive(Serialize, Deserialize)]
pub(super) struct EpochPayload<'a> {
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) positions: Vec<SourcePosition>,
    #[serde(serialize_with = "as_bytes")]
    pub(super) sums: &'a [u8],
    #[serde(serialize_with = "as_bytes")]
    pub(super) values: &'a [u8],
    /// Present in frames of kind `ENTITY_EPOCH`: sixteen bytes per entity.
    #[serde(skip)]
    pub(super) admitted: Option<&'a [u8]>,
}

/// Payload of a release frame without its link; values are packed.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct ReleasePayload<'a> {
    pub(super) generation: u64,
    pub(super) epoch: u64,
    #[serde(serialize_with = "as_bytes")]
    pub(super) values: &'a [u8],
}

/// Payload of a checkpoint's frame. The link of its epoch ties it to its log.
#[derive(Serialize, Deserialize)]
pub(super) struct CheckpointPayload<'a> {
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) chain: ChainLink,
    #[serde(serialize_with = "as_bytes")]
    pub(super) bytes: &'a [u8],
}

/// Payload of a frame of entities; the integers are packed.
#[derive(Serialize, Deserialize)]
pub(super) struct EntitiesPayload<'a> {
    /// Epoch and link of the checkpoint.
    pub(super) epoch: u64,
    pub(super) chain: ChainLink,
    /// The epoch since which these entities have changed; 0: the frame is one of all entities.
    pub(super) since: u64,
    /// Sixteen bytes per entity, ascending as integers.
    #[serde(serialize_with = "as_bytes")]
    pub(super) entities: &'a [u8],
    #[serde(serialize_with = "as_bytes")]
    pub(super) participations: &'a [u8],
    /// The epochs since the last participation.
    #[serde(serialize_with = "as_bytes")]
    pub(super) ages: &'a [u8],
}

impl EpochPayload<'_> {
    /// Returns the published part of this epoch.
    pub(super) fn release(&self) -> ReleasePayload<'_> {
        let Self { generation, epoch, values, .. } = *self;
        ReleasePayload { generation, epoch, values }
    }

    /// Unpacks the frame; `None` if the packed integers are malformed.
    pub(super) fn unpack(self) -> Option<EpochFrame> {
        let admitted = self.admitted.map(hashes);
        Some(EpochFrame {
            epoch: self.epoch,
            positions: self.positions,
            sums: unpack(self.sums)?.into(),
            values: unpack(self.values)?,
            admitted: match admitted {
                Some(hashes) => Some(hashes?),
                None => None,
            },
        })
    }
}

impl ReleasePayload<'_> {
    /// Encodes the public log's frame, with its link.
    pub(super) fn frame(&self, chain: ChainLink) -> Result<Zeroizing<Vec<u8>>, StateError> {
        encode(kind::RELEASE, 0, &(self, chain))
    }

    /// Unpacks the frame; `None` if the packed integers are malformed.
    pub(super) fn unpack(&self, chain: ChainLink) -> Option<ReleaseFrame> {
        let Self { generation, epoch, values } = *self;
        Some(ReleaseFrame { generation, epoch, values: unpack(values)?, chain })
    }
}

/// Splits bytes into hashes of sixteen; `None` if bytes remain.
fn hashes(bytes: &[u8]) -> Option<Zeroizing<Vec<u128>>> {
    let (hashes, rest) = bytes.as_chunks();
    rest.is_empty().then(|| Zeroizing::new(hashes.iter().map(|hash| u128::from_le_bytes(*hash)).collect()))
}

/// Serializes with one copy instead of one call per byte; the output is the same.
fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

fn layout() -> impl Options {
    DefaultOptions::new().with_fixint_encoding().with_limit(MAX_PAYLOAD).reject_trailing_bytes()
}

/// Encodes a frame: header and payload.
pub(super) fn encode(
    kind: u8,
    synced_length: u64,
    payload: &impl Serialize,
) -> Result<Zeroizing<Vec<u8>>, StateError> {
    let length =
        layout().serialized_size(payload).map_err(|_| StateError::TooLarge { limit: MAX_PAYLOAD })?;
    // Full capacity from the start: a growing vector leaves copies of the sums in freed memory.
    let mut frame = Zeroizing::new(Vec::with_capacity(FRAME_HEADER_LENGTH + length as usize));
    frame.resize(FRAME_HEADER_LENGTH, 0);
    layout()
        .serialize_into(&mut *frame, payload)
        .expect("the size fits the limit and writing to memory succeeds");
    let header = FrameHeader::of(kind, synced_length, &frame[FRAME_HEADER_LENGTH..]).to_bytes();
    frame[..FRAME_HEADER_LENGTH].copy_from_slice(&header);
    Ok(frame)
}

/// Returns the number of bytes of an encoded part of a payload.
pub(super) fn encoded_length(part: &(impl Serialize + ?Sized)) -> Result<usize, StateError> {
    let length = layout().serialized_size(part);
    length.map(|length| length as usize).map_err(|_| StateError::TooLarge { limit: MAX_PAYLOAD })
}

/// Appends an encoded part of a payload.
pub(super) fn encode_onto(bytes: &mut Vec<u8>, part: &(impl Serialize + ?Sized)) -> Result<(), StateError> {
    layout().serialize_into(bytes, part).map_err(|_| StateError::TooLarge { limit: MAX_PAYLOAD })
}

/// Decodes the payload in `bytes`, whose checksum has been verified.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Box<ErrorKind>> {
    layout().deserialize(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::batch::EncodedEpochs;
    use super::*;

    fn example() -> EpochFrame {
        EpochFrame {
            epoch: 3,
            positions: vec![SourcePosition { partition: 1, offset: 300, payload: b"ab".to_vec() }],
            sums: vec![-1, 5].into(),
            values: vec![256],
            admitted: None,
        }
    }

    /// The frames of an epoch in both logs, and its link.
    fn encoded(frame: EpochFrame) -> (Vec<u8>, Vec<u8>, ChainLink) {
        let mut encoded = EncodedEpochs::default();
        encoded.encode(2, 77, ChainLink::of_header(b"header"), &[frame]).unwrap();
        (encoded.private.to_vec(), encoded.public.clone(), encoded.links[0])
    }

    #[test]
    fn an_epoch_frame_has_these_bytes() {
        let (private, public, link) = encoded(example());
        let expected = [
            &[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..],
            &[
                1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 44, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'a',
                b'b',
            ],
            &[3, 0, 0, 0, 0, 0, 0, 0, 1, 255, 5],
            &[3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1],
        ]
        .concat();
        let released = [&expected[..16], &expected[expected.len() - 11..]].concat();
        assert_eq!(private[24..], [&expected[..], link.bytes()].concat());
        assert_eq!(private[..5], [expected.len() as u8 + 32, 0, 0, 0, kind::EPOCH]);
        assert_eq!(private[8], 77);
        assert_eq!(public[24..], [&released[..], link.bytes()].concat());
        assert_eq!((public[4], public[8]), (kind::RELEASE, 0));
    }

    #[test]
    fn frames_return() {
        let (private, public, link) = encoded(example());
        let (epoch, chain): (EpochPayload<'_>, ChainLink) = decode(&private[24..]).unwrap();
        assert!(epoch.unpack() == Some(example()) && chain == link);
        let (release, chain): (ReleasePayload<'_>, ChainLink) = decode(&public[24..]).unwrap();
        let expected = ReleaseFrame { generation: 2, epoch: 3, values: vec![256], chain: link };
        assert_eq!(release.unpack(chain), Some(expected));
    }

    #[test]
    fn participants_are_stored_after_the_values() {
        let admitted = Some(Zeroizing::new(vec![1, u128::MAX]));
        let of_entities = EpochFrame { admitted: admitted.clone(), ..example() };
        let (private, public, link) = encoded(of_entities.clone());
        let plain = encoded(example());
        assert!(public == plain.1 && link == plain.2, "nobody sees it");
        let hashes = [&1_u128.to_le_bytes()[..], &[255; 16]].concat();
        let [before, chain] = [&plain.0[24..], link.bytes()];
        let before = &before[..before.len() - chain.len()];
        assert_eq!(private[24..], [before, &[32, 0, 0, 0, 0, 0, 0, 0], &hashes, chain].concat());
        assert_eq!(private[4], kind::ENTITY_EPOCH);
        let ((epoch, bytes), _): ((EpochPayload<'_>, &[u8]), ChainLink) = decode(&private[24..]).unwrap();
        let epoch = EpochPayload { admitted: Some(bytes), ..epoch };
        assert!(epoch.unpack() == Some(of_entities));
        assert!(super::hashes(&hashes[1..]).is_none(), "a hash is cut");
    }

    #[test]
    fn malformed_payloads_are_refused() {
        type Chained<'a> = (EpochPayload<'a>, ChainLink);
        let (private, ..) = encoded(example());
        let payload = &private[24..];
        for length in 0..payload.len() {
            assert!(decode::<Chained<'_>>(&payload[..length]).is_err(), "cut to {length}");
        }
        assert!(decode::<Chained<'_>>(&[payload, &[0]].concat()).is_err(), "one byte too many");
        let mut huge = payload.to_vec();
        huge[16..24].fill(0xff);
        assert!(decode::<Chained<'_>>(&huge).is_err(), "more positions than bytes");
    }

    #[test]
    fn a_frame_above_the_limit_is_refused_before_it_is_allocated() {
        struct Claim;
        impl Serialize for Claim {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeSeq;
                let mut list = serializer.serialize_seq(Some(1 << 27))?;
                (0..1 << 27).try_for_each(|i: u64| list.serialize_element(&i))?;
                list.end()
            }
        }
        assert!(matches!(encode(kind::EPOCH, 0, &Claim), Err(StateError::TooLarge { .. })));
    }
}
