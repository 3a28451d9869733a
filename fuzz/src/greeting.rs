//! What strangers say to a process of a cluster: greetings, answers, confirmations and frames. None of it is taken for
//! something that a process with the key has said.

use hushflow::runtime::link::{Answered, Call, GREETING, Greeting, Link, SHORT_FRAME, Session, answer};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// More than fits into the buffer of a socket would wait for a reader.
const LARGEST: usize = 1 << 16;

/// The first byte of an input says what the others are.
pub fn run(input: &[u8]) {
    let [which, says @ ..] = input else { return };
    match which % 4 {
        0 => assert!(answer(None, &padded::<GREETING>(says), |caller| *caller).is_err()),
        1 => confirm(says),
        2 => {
            let (call, _) = Call::begin(None, &greeting(&[])).expect("entropy");
            assert!(call.answered(&padded::<GREETING>(says)).is_err());
        }
        _ => frames(says),
    }
}

/// The beginning of the bytes, and zeros.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    let length = bytes.len().min(N);
    padded[..length].copy_from_slice(&bytes[..length]);
    padded
}

fn greeting(bytes: &[u8]) -> Greeting {
    let bytes = padded::<48>(bytes);
    let number = |place: usize| u32::from_le_bytes(padded(&bytes[4 * place..]));
    Greeting {
        process: number(0),
        to: number(1),
        processes: number(2),
        workers: number(3),
        pipeline: padded(&bytes[16..]),
    }
}

/// Two processes that greet each other with these numbers.
fn sessions(says: &[u8]) -> [Session; 2] {
    let own = greeting(says);
    let (call, hello) = Call::begin(None, &own).expect("entropy");
    let Answered { caller, answer: back, session: called } =
        answer(None, &hello, |caller| *caller).expect("a greeting");
    let (found, calling) = call.answered(&back).expect("an answer");
    assert!(caller == own && found == own);
    [calling, called]
}

/// A greeting with any numbers, which is heard as it was said, and a confirmation of any bytes, which is none.
fn confirm(says: &[u8]) {
    let [_, mut called] = sessions(says);
    assert!(called.open(&padded::<SHORT_FRAME>(says.get(48..).unwrap_or_default())).is_err());
}

/// A link on which a stranger speaks after a frame: what was in that frame is read, and nothing else.
fn frames(says: &[u8]) {
    let says = &says[..says.len().min(LARGEST)];
    let [calling, called] = sessions(&[]);
    let (near, far) = UnixStream::pair().expect("two ends");
    let mut wire = near.try_clone().expect("a handle");
    Link::new(near, calling).and_then(|mut link| link.write_all(b"ours")).expect("room");
    wire.write_all(says).and_then(|()| wire.shutdown(Shutdown::Write)).expect("room");
    let mut heard = Vec::new();
    let ended = Link::new(far, called).expect("a link").read_to_end(&mut heard);
    assert!(ended.is_err() && heard == b"ours", "{} bytes were taken", heard.len());
}
