//! The link as a stream, which the dataflow reads and writes like a connection.

use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use snow::StatelessTransportState;
use timely::communication::allocator::zero_copy::stream::Stream;
use zeroize::Zeroizing;

use super::{LARGEST, LENGTH, LinkSession, TAG, open, seal};

/// A connection encrypted by a [`LinkSession`]. Clones share it, like those of a socket.
pub struct EncryptedLink<S: Stream>(Arc<LinkEnds<S>>);

struct LinkEnds<S> {
    stream: S,
    ciphers: Arc<StatelessTransportState>,
    sending: Mutex<LinkSender<S>>,
    receiving: Mutex<LinkReceiver<S>>,
}

struct LinkSender<S> {
    stream: S,
    sent: u64,
    frame: Vec<u8>,
}

struct LinkReceiver<S> {
    stream: BufReader<S>,
    received: u64,
    sealed: Vec<u8>,
    /// Plain text of the last frame; `plain[from..to]` is unread.
    plain: Zeroizing<Vec<u8>>,
    from: usize,
    to: usize,
    ended: bool,
}

impl<S: Stream> EncryptedLink<S> {
    /// Makes a link over a connection after the handshake.
    ///
    /// # Errors
    /// If the system has no file handle left.
    pub fn new(stream: S, session: LinkSession) -> io::Result<Self> {
        let LinkSession { ciphers, sent, received } = session;
        let sending =
            LinkSender { stream: stream.try_clone()?, sent, frame: vec![0; LENGTH + LARGEST + TAG] };
        let receiving = LinkReceiver {
            stream: BufReader::with_capacity(2 * (LENGTH + LARGEST + TAG), stream.try_clone()?),
            received,
            sealed: vec![0; LARGEST + TAG],
            plain: Zeroizing::new(vec![0; LARGEST + TAG]),
            from: 0,
            to: 0,
            ended: false,
        };
        Ok(EncryptedLink(Arc::new(LinkEnds {
            stream,
            ciphers,
            sending: Mutex::new(sending),
            receiving: Mutex::new(receiving),
        })))
    }

    /// Returns the underlying connection.
    pub(in crate::runtime) fn stream(&self) -> &S {
        &self.0.stream
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Stream> LinkSender<S> {
    fn send(&mut self, ciphers: &StatelessTransportState, plain: &[u8]) -> io::Result<()> {
        let length = seal(ciphers, &mut self.sent, plain, &mut self.frame)?;
        self.stream.write_all(&self.frame[..length])
    }
}

impl<S: Stream> LinkReceiver<S> {
    /// Reads the next frame.
    fn receive(&mut self, ciphers: &StatelessTransportState) -> io::Result<()> {
        let mut length = [0; LENGTH];
        self.stream.read_exact(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        let sealed = &mut self.sealed[..length];
        self.stream.read_exact(sealed)?;
        (self.from, self.to) = (0, open(ciphers, &mut self.received, sealed, &mut self.plain)?);
        self.ended = self.to == 0;
        Ok(())
    }
}

impl<S: Stream> Read for EncryptedLink<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut receiving = locked(&self.0.receiving);
        while receiving.from == receiving.to && !receiving.ended && !buffer.is_empty() {
            receiving.receive(&self.0.ciphers)?;
        }
        let (from, to) = (receiving.from, receiving.to.min(receiving.from + buffer.len()));
        buffer[..to - from].copy_from_slice(&receiving.plain[from..to]);
        receiving.from = to;
        Ok(to - from)
    }
}

impl<S: Stream> Write for EncryptedLink<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(LARGEST)];
        if !part.is_empty() {
            locked(&self.0.sending).send(&self.0.ciphers, part)?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        locked(&self.0.sending).stream.flush()
    }
}

impl<S: Stream> Stream for EncryptedLink<S> {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(EncryptedLink(Arc::clone(&self.0)))
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.stream.set_nonblocking(nonblocking)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Read {
            locked(&self.0.sending).send(&self.0.ciphers, &[])?;
        }
        self.0.stream.shutdown(how)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{keys, sessions};
    use super::*;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixStream;

    fn links() -> [EncryptedLink<UnixStream>; 2] {
        let [key, _] = keys();
        let (a, b) = UnixStream::pair().unwrap();
        let [calling, called] = sessions(&key);
        [EncryptedLink::new(a, calling).unwrap(), EncryptedLink::new(b, called).unwrap()]
    }

    #[test]
    fn a_link_carries_bytes_and_reports_its_end() {
        let [mut a, mut b] = links();
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let writing = std::thread::spawn(move || {
            a.write_all(b"").unwrap();
            a.write_all(&sent).unwrap();
            a.shutdown(Shutdown::Write).unwrap();
            let mut back = Vec::new();
            a.read_to_end(&mut back).unwrap();
            back
        });
        let mut received = Vec::new();
        b.read_to_end(&mut received).unwrap();
        assert!(received == expected);
        b.try_clone().unwrap().write_all(b"back").unwrap();
        b.shutdown(Shutdown::Write).unwrap();
        assert_eq!(writing.join().unwrap(), b"back");
    }

    #[test]
    fn a_link_that_is_cut_or_meddled_with_fails() {
        let read = |meddle: fn(Vec<u8>) -> Vec<u8>| {
            let [key, _] = keys();
            let [calling, called] = sessions(&key);
            let ((a, mut network), (mut out, b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            let mut a = EncryptedLink::new(a, calling).unwrap();
            [&b"one"[..], b"two"].iter().for_each(|part| a.write_all(part).unwrap());
            a.shutdown(Shutdown::Write).unwrap();
            let mut bytes = Vec::new();
            network.read_to_end(&mut bytes).unwrap();
            out.write_all(&meddle(bytes)).unwrap();
            drop(out);
            let mut received = Vec::new();
            let ended = EncryptedLink::new(b, called).unwrap().read_to_end(&mut received);
            (received, ended.map_err(|error| error.kind()).err())
        };
        const FRAME: usize = LENGTH + 3 + TAG;
        assert_eq!(read(|bytes| bytes), (b"onetwo".to_vec(), None));
        let cut = Some(ErrorKind::UnexpectedEof);
        assert_eq!(read(|bytes| bytes[..2 * FRAME].to_vec()), (b"onetwo".to_vec(), cut));
        assert_eq!(read(|bytes| bytes[..FRAME + 5].to_vec()), (b"one".to_vec(), cut));
        let forged = Some(ErrorKind::InvalidData);
        let twice = |bytes: Vec<u8>| [&bytes[..FRAME], &bytes[..FRAME]].concat();
        assert_eq!(read(twice), (b"one".to_vec(), forged));
        let left_out = |bytes: Vec<u8>| bytes[FRAME..].to_vec();
        assert_eq!(read(left_out), (vec![], forged));
        let changed = |mut bytes: Vec<u8>| {
            bytes[FRAME + LENGTH] ^= 1;
            bytes
        };
        assert_eq!(read(changed), (b"one".to_vec(), forged));
        assert_eq!(read(|_| vec![0; 40]), (vec![], forged), "frames without a tag");
        assert_eq!(read(|_| vec![0xff; 40]), (vec![], cut));
    }
}
