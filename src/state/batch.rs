//! Encodes the epochs of a commit as frames of both logs. The frames of each log are concatenated
//! in one buffer.
//!
//! The bytes are those of the payloads' own encoding ([`super::frames`]); a test compares them.

use super::{
    chain::ChainLink,
    error::StateError,
    format::{FRAME_HEADER_LENGTH, FrameHeader, MAX_PAYLOAD, kind},
    frames::{EpochFrame, ReleasePayload, SourcePosition, encode_onto, encoded_length},
    integers::{PackedWidth, SLACK},
};
use hushflow_mechanism::moments::IntegerRow;
use std::ops::Deref;
use zeroize::Zeroize;

/// Bytes of a number, and of the length before a list.
const WORD: usize = size_of::<u64>();

/// An epoch to be committed.
pub trait CommittedEpoch {
    /// The epoch, from 1.
    fn epoch(&self) -> u64;
    /// Source positions when the epoch closed.
    fn positions(&self) -> &[SourcePosition];
    /// The exact sums of all keys and blocks, end to end, in grid units. Secret.
    fn sums(&self) -> impl Iterator<Item = IntegerRow<'_>>;
    /// The release, end to end, in grid units. Secret until it is committed.
    fn values(&self) -> impl Iterator<Item = IntegerRow<'_>>;
    /// Hashes of the participants, if entities are protected. Secret.
    fn admitted(&self) -> Option<&[u128]>;
}

impl CommittedEpoch for EpochFrame {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn positions(&self) -> &[SourcePosition] {
        &self.positions
    }

    fn sums(&self) -> impl Iterator<Item = IntegerRow<'_>> {
        std::iter::once(IntegerRow::Wide(&self.sums))
    }

    fn values(&self) -> impl Iterator<Item = IntegerRow<'_>> {
        std::iter::once(IntegerRow::Wide(&self.values))
    }

    fn admitted(&self) -> Option<&[u128]> {
        self.admitted.as_ref().map(|hashes| &hashes[..])
    }
}

/// The frames of epochs that are committed together.
#[derive(Default)]
pub(super) struct EncodedEpochs {
    /// Frames of the private log.
    pub(super) private: SecretBytes,
    /// Frames of the public log.
    pub(super) public: Vec<u8>,
    /// The link of each epoch.
    pub(super) links: Vec<ChainLink>,
}

/// Bytes that are wiped word by word. Wiping byte by byte would take longer than encoding them.
#[derive(Default)]
pub(super) struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Wipes all bytes, and keeps the memory.
    fn clear(&mut self) {
        // Packing has written up to `SLACK` bytes beyond the end.
        self.0.resize(self.0.capacity().min(self.0.len() + SLACK), 0);
        let (head, words, tail) = bytemuck::pod_align_to_mut::<u8, u64>(&mut self.0);
        head.zeroize();
        words.zeroize();
        tail.zeroize();
        self.0.clear();
    }

    /// Reserves this number of bytes in advance, because growing would leave a copy in freed
    /// memory.
    fn reserve(&mut self, length: usize) {
        if self.0.capacity() < length {
            self.0 = Vec::with_capacity(length);
        }
    }
}

impl Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Lengths of the parts of an epoch.
struct EpochLengths {
    sums: PackedWidth,
    values: PackedWidth,
    /// Bytes of the payload in the private log, and in the public one.
    payloads: [usize; 2],
}

impl EpochLengths {
    fn of(epoch: &impl CommittedEpoch) -> Result<Self, StateError> {
        let (sums, values) = (PackedWidth::of(epoch.sums()), PackedWidth::of(epoch.values()));
        let admitted = epoch.admitted().map_or(0, |all| WORD + size_of_val(all));
        let public = 2 * WORD + WORD + values.length() + size_of::<ChainLink>();
        let private = public + encoded_length(epoch.positions())? + WORD + sums.length() + admitted;
        if private as u64 > MAX_PAYLOAD {
            return Err(StateError::TooLarge { limit: MAX_PAYLOAD });
        }
        Ok(Self { sums, values, payloads: [private, public] })
    }
}

impl EncodedEpochs {
    /// Encodes `epochs`, committed by `generation` after the link `before`, for a segment synced up
    /// to `synced_length`. The buffers must be empty.
    pub(super) fn encode(
        &mut self,
        generation: u64,
        synced_length: u64,
        before: ChainLink,
        epochs: &[impl CommittedEpoch],
    ) -> Result<(), StateError> {
        let lengths: Vec<_> = epochs.iter().map(EpochLengths::of).collect::<Result<_, _>>()?;
        let [of_private, of_public] = [0, 1].map(|log| {
            let frames = lengths.iter().map(|epoch| FRAME_HEADER_LENGTH + epoch.payloads[log]);
            frames.sum::<usize>() + SLACK
        });
        self.private.reserve(of_private);
        self.public.reserve(of_public);
        let Self { private: SecretBytes(private), public, links } = self;
        let mut link = before;
        for (epoch, EpochLengths { sums, values, .. }) in epochs.iter().zip(lengths) {
            let numbers = [generation.to_le_bytes(), epoch.epoch().to_le_bytes()];

            let start = begin(public);
            public.extend_from_slice(numbers.as_flattened());
            append_length(public, values.length());
            let packed = public.len();
            values.pack(epoch.values(), public);
            let values = &public[packed..];
            link = link.next(&ReleasePayload { generation, epoch: epoch.epoch(), values });

            let private_start = begin(private);
            private.extend_from_slice(numbers.as_flattened());
            encode_onto(private, epoch.positions())?;
            append_length(private, sums.length());
            sums.pack(epoch.sums(), private);
            append_length(private, values.len());
            private.extend_from_slice(values);
            if let Some(admitted) = epoch.admitted() {
                append_length(private, size_of_val(admitted));
                admitted.iter().for_each(|hash| private.extend_from_slice(&hash.to_le_bytes()));
            }
            private.extend_from_slice(link.bytes());
            let kind_of_epoch = if epoch.admitted().is_some() { kind::ENTITY_EPOCH } else { kind::EPOCH };
            end(private, private_start, kind_of_epoch, synced_length);

            public.extend_from_slice(link.bytes());
            end(public, start, kind::RELEASE, 0);
            links.push(link);
        }
        Ok(())
    }

    /// Removes the epochs, wipes the secret bytes, and keeps the allocated memory.
    pub(super) fn clear(&mut self) {
        self.private.clear();
        self.public.clear();
        self.links.clear();
    }
}

/// Reserves space for a frame's header. Returns the position at which the frame starts.
fn begin(frames: &mut Vec<u8>) -> usize {
    let start = frames.len();
    frames.resize(start + FRAME_HEADER_LENGTH, 0);
    start
}

/// Writes the header of the frame from `start` on.
fn end(frames: &mut [u8], start: usize, kind: u8, synced_length: u64) {
    let (header, payload) = frames[start..].split_at_mut(FRAME_HEADER_LENGTH);
    header.copy_from_slice(&FrameHeader::of(kind, synced_length, payload).to_bytes());
}

fn append_length(frames: &mut Vec<u8>, length: usize) {
    frames.extend_from_slice(&(length as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::frames::{EpochPayload, decode, encode};
    use super::super::integers::unpack;
    use super::*;
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    /// Sums, values, participants and the number of positions of an epoch.
    type DrawnEpoch = (Vec<i128>, Vec<i128>, Option<Vec<u128>>, u32);

    fn drawn_epochs() -> impl Strategy<Value = Vec<DrawnEpoch>> {
        let integer = (any::<i128>(), 0u32..128).prop_map(|(x, shift)| x >> shift);
        let integers = prop::collection::vec(integer, 0..20);
        let hashes = prop::option::of(prop::collection::vec(any::<u128>(), 0..3));
        prop::collection::vec((integers.clone(), integers, hashes, 0..3u32), 0..6)
    }

    fn frames(drawn: Vec<DrawnEpoch>) -> Vec<EpochFrame> {
        let frame = |(epoch, (sums, values, admitted, partitions)): (u64, DrawnEpoch)| EpochFrame {
            epoch,
            positions: (0..partitions)
                .map(|partition| SourcePosition { partition, offset: 7 * epoch, payload: vec![1; 5] })
                .collect(),
            sums: sums.into(),
            values,
            admitted: admitted.map(Zeroizing::new),
        };
        (1..).zip(drawn).map(frame).collect()
    }

    /// Encodes one epoch by the payloads' own encoding.
    fn one_by_one(
        generation: u64,
        synced: u64,
        before: ChainLink,
        frame: &EpochFrame,
    ) -> (Vec<u8>, Vec<u8>, ChainLink) {
        let packed = |integers: &[i128]| {
            let (row, mut bytes) = (IntegerRow::Wide(integers), Vec::new());
            PackedWidth::of([row].into_iter()).pack([row].into_iter(), &mut bytes);
            bytes
        };
        let (sums, values) = (packed(&frame.sums), packed(&frame.values));
        let admitted: Option<Vec<u8>> =
            frame.admitted.as_ref().map(|all| all.iter().flat_map(|hash| hash.to_le_bytes()).collect());
        let payload = EpochPayload {
            generation,
            epoch: frame.epoch,
            positions: frame.positions.clone(),
            sums: &sums,
            values: &values,
            admitted: admitted.as_deref(),
        };
        let link = before.next(&payload.release());
        let private = match &admitted {
            None => encode(kind::EPOCH, synced, &(&payload, link)),
            Some(hashes) => encode(kind::ENTITY_EPOCH, synced, &((&payload, hashes), link)),
        };
        (private.unwrap().to_vec(), payload.release().frame(link).unwrap().to_vec(), link)
    }

    proptest! {
        /// Any split of epochs into commits gives the same bytes.
        #[test]
        fn epochs_are_encoded_together_as_one_by_one(drawn in drawn_epochs(), split in 0..6usize) {
            let frames = frames(drawn);
            let before = ChainLink::of_header(b"header");
            let (mut private, mut public, mut link) = (Vec::new(), Vec::new(), before);
            for frame in &frames {
                let (own, released, next) = one_by_one(3, 77, link, frame);
                private.extend(own);
                public.extend(released);
                link = next;
            }
            let (one, other) = frames.split_at(split.min(frames.len()));
            // Encode both parts one after the other in the same buffers.
            let mut encoded = EncodedEpochs::default();
            encoded.encode(3, 77, before, one).unwrap();
            let middle = encoded.links.last().copied().unwrap_or(before);
            let first = (encoded.private.to_vec(), encoded.public.clone(), encoded.links.clone());
            encoded.clear();
            encoded.encode(3, 77, middle, other).unwrap();
            prop_assert_eq!([&first.0[..], &encoded.private].concat(), private);
            prop_assert_eq!([&first.1[..], &encoded.public].concat(), public);
            let links = [&first.2[..], &encoded.links].concat();
            prop_assert!(links.len() == frames.len() && links.last().is_none_or(|&last| last == link));
        }
    }

    #[test]
    fn packed_integers_are_read_back() {
        let frame = EpochFrame {
            epoch: 1,
            positions: Vec::new(),
            sums: vec![1 << 100, -1].into(),
            values: vec![5],
            admitted: None,
        };
        let mut encoded = EncodedEpochs::default();
        encoded.encode(1, 0, ChainLink::default(), &[frame]).unwrap();
        let (epoch, _): (EpochPayload<'_>, ChainLink) =
            decode(&encoded.private[FRAME_HEADER_LENGTH..]).unwrap();
        assert_eq!((unpack(epoch.sums), unpack(epoch.values)), (Some(vec![1 << 100, -1]), Some(vec![5])));
    }
}
