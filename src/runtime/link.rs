//! An authenticated, encrypted link between two processes of a cluster, used instead of the bare
//! connection.
//!
//! # The handshake
//! Noise (<https://noiseprotocol.org/noise.html>), `NNpsk0` with X25519, ChaCha20-Poly1305 and
//! BLAKE2s, under the cluster's key:
//!
//! | | from | bytes | contents |
//! |---|---|---|---|
//! | greeting | caller | 96 | an ephemeral key; encrypted: caller, callee, its run ([`Greeting`]) |
//! | answer | called | 96 | an ephemeral key; encrypted: the same of the called process |
//! | confirmation | caller | 19 | a frame: the caller read the answer, so it replays nothing |
//! | verdict | called | 19 | a frame: [`GreetingVerdict`] |
//!
//! A greeting made without the key does not decrypt, and its sender is dropped. Greetings name both
//! ends, so none can be sent back to its sender or forwarded to another process. The keys of a link
//! also depend on the ephemeral keys: a key stolen later decrypts no traffic recorded before.
//!
//! # Frames
//! Two bytes of length (big-endian, 16 to 65535), followed by that many bytes of ciphertext with
//! its tag. Each direction has its own key and counter, so a frame that is changed, left out,
//! repeated, reordered or sent back does not decrypt. An empty frame ends a direction; a connection
//! cut before it has not ended in good order.
//!
//! Sizes and times of frames are visible on the network.

mod stream;

use std::io::{self, ErrorKind};
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};

pub use stream::EncryptedLink;

use crate::key::SharedKey;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Part of every handshake: another version of this protocol, or another protocol with the same
/// key, does not decrypt.
const PROLOGUE: &[u8] = b"hushflow cluster 2";

/// The public key of clusters without a key file. It hides loopback traffic from a packet capture,
/// but any process of this machine can join.
const NO_KEY: [u8; 32] = [0; 32];

const TAG: usize = 16;
const PUBLIC_KEY: usize = 32;

/// Bytes of a greeting's plain text.
const PLAIN: usize = 48;

/// Bytes of a greeting or an answer.
pub const GREETING: usize = PUBLIC_KEY + PLAIN + TAG;

/// Bytes of a frame's length field.
const LENGTH: usize = 2;

/// Bytes of a frame that holds one byte.
pub const SHORT_FRAME: usize = LENGTH + 1 + TAG;

/// Maximum number of bytes of plain text in a frame.
const LARGEST: usize = u16::MAX as usize - TAG;

/// Greeting of a process: its identity and the process that it addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Number of the sender.
    pub process: u32,
    /// Number of the intended receiver.
    pub to: u32,
    /// Number of processes.
    pub processes: u32,
    /// Worker threads per process.
    pub workers: u32,
    /// A hash of the pipeline and the kind of noise.
    pub pipeline: [u8; 32],
}

/// The called process's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GreetingVerdict {
    /// The link is accepted.
    Welcome = 1,
    /// A process with the caller's number is connected and stays connected.
    Taken = 2,
    /// The caller runs something different.
    Different = 3,
}

impl GreetingVerdict {
    /// Returns the verdict with this number.
    pub fn of(byte: u8) -> Option<Self> {
        [GreetingVerdict::Welcome, GreetingVerdict::Taken, GreetingVerdict::Different]
            .into_iter()
            .find(|verdict| *verdict as u8 == byte)
    }
}

/// Bytes not made by a process with the key, or not for this step of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHandshake;

impl From<snow::Error> for InvalidHandshake {
    fn from(_: snow::Error) -> Self {
        InvalidHandshake
    }
}

impl From<InvalidHandshake> for io::Error {
    fn from(_: InvalidHandshake) -> Self {
        io::Error::new(ErrorKind::InvalidData, "what came was not made with this key")
    }
}

impl Greeting {
    fn encode(&self) -> [u8; PLAIN] {
        let mut bytes = [0; PLAIN];
        let numbers = [self.process, self.to, self.processes, self.workers];
        for (number, index) in numbers.iter().zip(bytes.chunks_exact_mut(4)) {
            index.copy_from_slice(&number.to_le_bytes());
        }
        bytes[16..].copy_from_slice(&self.pipeline);
        bytes
    }

    fn decode(bytes: &[u8; PLAIN]) -> Self {
        let number = |index: usize| {
            let bytes = &bytes[4 * index..4 * index + 4];
            bytes.iter().rev().fold(0u32, |value, &byte| value << 8 | u32::from(byte))
        };
        let mut pipeline = [0; 32];
        pipeline.copy_from_slice(&bytes[16..]);
        Greeting { process: number(0), to: number(1), processes: number(2), workers: number(3), pipeline }
    }
}

/// Begins a handshake with a key, or with the public one.
fn handshake(key: Option<&SharedKey>, calls: bool) -> Result<HandshakeState, InvalidHandshake> {
    let secret = key.map_or(&NO_KEY, SharedKey::bytes);
    let pattern = PATTERN.parse().map_err(|_| InvalidHandshake)?;
    let builder = Builder::new(pattern).prologue(PROLOGUE)?.psk(0, secret)?;
    Ok(if calls { builder.build_initiator()? } else { builder.build_responder()? })
}

fn write(state: &mut HandshakeState, greeting: &Greeting) -> Result<[u8; GREETING], InvalidHandshake> {
    let mut message = [0; GREETING];
    let written = state.write_message(&greeting.encode(), &mut message)?;
    if written == GREETING { Ok(message) } else { Err(InvalidHandshake) }
}

fn read(state: &mut HandshakeState, message: &[u8; GREETING]) -> Result<Greeting, InvalidHandshake> {
    let mut plain = [0; GREETING];
    let read = state.read_message(message, &mut plain)?;
    plain.first_chunk().filter(|_| read == PLAIN).map(Greeting::decode).ok_or(InvalidHandshake)
}

/// The caller's side of a handshake in progress.
pub struct CallerHandshake(HandshakeState);

impl CallerHandshake {
    /// Begins a handshake; returns the greeting to send.
    ///
    /// # Errors
    /// [`InvalidHandshake`] if the system has no entropy for an ephemeral key.
    pub fn begin(
        key: Option<&SharedKey>,
        greeting: &Greeting,
    ) -> Result<(Self, [u8; GREETING]), InvalidHandshake> {
        let mut state = handshake(key, true)?;
        let message = write(&mut state, greeting)?;
        Ok((CallerHandshake(state), message))
    }

    /// Processes the answer.
    ///
    /// # Errors
    /// [`InvalidHandshake`] unless it was made with the key for this greeting.
    pub fn answered(mut self, answer: &[u8; GREETING]) -> Result<(Greeting, LinkSession), InvalidHandshake> {
        let greeting = read(&mut self.0, answer)?;
        Ok((greeting, LinkSession::of(self.0)?))
    }
}

/// The called side's part of a handshake.
pub struct HandshakeAnswer {
    /// The caller's greeting. The caller is unproven until a frame of the session arrives, because
    /// the greeting may be a recording.
    pub caller: Greeting,
    /// The answer to send.
    pub answer: [u8; GREETING],
    /// The session.
    pub session: LinkSession,
}

/// Processes a greeting on the called side.
///
/// # Errors
/// [`InvalidHandshake`] if the greeting was not made with the key.
pub fn answer(
    key: Option<&SharedKey>,
    greeting: &[u8; GREETING],
    own: impl FnOnce(&Greeting) -> Greeting,
) -> Result<HandshakeAnswer, InvalidHandshake> {
    let mut state = handshake(key, false)?;
    let caller = read(&mut state, greeting)?;
    let answer = write(&mut state, &own(&caller))?;
    Ok(HandshakeAnswer { caller, answer, session: LinkSession::of(state)? })
}

/// The keys and counters of a link.
pub struct LinkSession {
    ciphers: Arc<StatelessTransportState>,
    sent: u64,
    received: u64,
}

impl LinkSession {
    fn of(state: HandshakeState) -> Result<Self, InvalidHandshake> {
        Ok(LinkSession { ciphers: Arc::new(state.into_stateless_transport_mode()?), sent: 0, received: 0 })
    }

    /// Encrypts a frame of one byte.
    ///
    /// # Errors
    /// [`InvalidHandshake`] if the counter has run out.
    pub fn seal(&mut self, byte: u8) -> Result<[u8; SHORT_FRAME], InvalidHandshake> {
        let mut frame = [0; SHORT_FRAME];
        seal(&self.ciphers, &mut self.sent, &[byte], &mut frame)?;
        Ok(frame)
    }

    /// Decrypts a frame of one byte.
    ///
    /// # Errors
    /// [`InvalidHandshake`] unless it is the next frame of the other side.
    pub fn open(&mut self, frame: &[u8; SHORT_FRAME]) -> Result<u8, InvalidHandshake> {
        let mut byte = [0; 1 + TAG];
        let (length, sealed) = frame.split_at(LENGTH);
        if length != (sealed.len() as u16).to_be_bytes() {
            return Err(InvalidHandshake);
        }
        open(&self.ciphers, &mut self.received, sealed, &mut byte)?;
        Ok(byte[0])
    }
}

/// Writes a frame with `plain` into `frame`; returns its length in bytes.
fn seal(
    ciphers: &StatelessTransportState,
    sent: &mut u64,
    plain: &[u8],
    frame: &mut [u8],
) -> Result<usize, InvalidHandshake> {
    let sealed = ciphers.write_message(*sent, plain, &mut frame[LENGTH..])?;
    frame[..LENGTH].copy_from_slice(&(sealed as u16).to_be_bytes());
    *sent += 1;
    Ok(LENGTH + sealed)
}

fn open(
    ciphers: &StatelessTransportState,
    received: &mut u64,
    sealed: &[u8],
    plain: &mut [u8],
) -> Result<usize, InvalidHandshake> {
    let length = ciphers.read_message(*received, sealed, plain)?;
    *received += 1;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn keys() -> [SharedKey; 2] {
        let directory = tempfile::tempdir().unwrap();
        ["a", "b"].map(|name| SharedKey::create(&directory.path().join(name)).unwrap())
    }

    fn greeting(process: u32, to: u32) -> Greeting {
        Greeting { process, to, processes: 3, workers: 2, pipeline: [7; 32] }
    }

    pub(super) fn sessions(key: &SharedKey) -> [LinkSession; 2] {
        let (call, hello) = CallerHandshake::begin(Some(key), &greeting(2, 1)).unwrap();
        let HandshakeAnswer { caller, answer: back, session: called } =
            answer(Some(key), &hello, |_| greeting(1, 2)).unwrap();
        let (found, calling) = call.answered(&back).unwrap();
        assert_eq!((caller, found), (greeting(2, 1), greeting(1, 2)));
        [calling, called]
    }

    #[test]
    fn both_ends_identify_each_other_and_agree() {
        let [key, _] = keys();
        let [mut calling, mut called] = sessions(&key);
        let frame = calling.seal(0).unwrap();
        assert_eq!(called.open(&frame), Ok(0));
        assert_eq!(called.open(&frame), Err(InvalidHandshake), "a frame counts once");
        let verdict = called.seal(GreetingVerdict::Taken as u8).unwrap();
        assert_eq!(called.open(&verdict), Err(InvalidHandshake), "nor can it be sent back");
        assert_eq!(calling.open(&verdict).map(GreetingVerdict::of), Ok(Some(GreetingVerdict::Taken)));
        assert_eq!([0, 4].map(GreetingVerdict::of), [None; 2]);
    }

    #[test]
    fn a_peer_without_the_key_fails_the_handshake() {
        let [key, other] = keys();
        let own = |_: &Greeting| greeting(1, 2);
        for wrong in [Some(&other), None] {
            let (_, hello) = CallerHandshake::begin(wrong, &greeting(2, 1)).unwrap();
            assert!(answer(Some(&key), &hello, own).is_err());
            let (call, hello) = CallerHandshake::begin(Some(&key), &greeting(2, 1)).unwrap();
            assert!(answer(wrong, &hello, own).is_err());
            // An answer under another key, as if its sender had read the greeting.
            let (_, theirs) = CallerHandshake::begin(wrong, &greeting(2, 1)).unwrap();
            let forged = answer(wrong, &theirs, own).unwrap().answer;
            assert!(call.answered(&forged).is_err());
        }
        let (_, hello) = CallerHandshake::begin(Some(&key), &greeting(2, 1)).unwrap();
        for index in 0..GREETING {
            let mut changed = hello;
            changed[index] ^= 1;
            assert!(answer(Some(&key), &changed, own).is_err(), "byte {index}");
        }
        // A replayed greeting is answered, but under keys that the replayer does not have.
        let first = answer(Some(&key), &hello, own).unwrap().answer;
        let HandshakeAnswer { answer: second, mut session, .. } = answer(Some(&key), &hello, own).unwrap();
        assert!(first != second);
        assert!(session.open(&[0; SHORT_FRAME]).is_err());
    }
}
