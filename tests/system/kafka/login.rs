//! The server's side of a login: PLAIN (RFC 4616) and SCRAM (RFC 5802), for one user.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

pub(super) const USER: &str = "reader";
pub(super) const PASSWORD: &str = "secret, of 7 words = %!";

const SALT: &[u8] = b"salt of this server";
const ROUNDS: u32 = 4096;

/// How the user may log in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    Plain,
    Scram256,
    Scram512,
}

impl Users {
    pub(super) fn name(self) -> &'static str {
        match self {
            Users::Plain => "PLAIN",
            Users::Scram256 => "SCRAM-SHA-256",
            Users::Scram512 => "SCRAM-SHA-512",
        }
    }
}

/// A login in progress.
pub(super) struct Login {
    users: Users,
    /// The client's first message without the prefix `n,,`, and the server's first message.
    first: Option<(String, String)>,
    is_admitted: bool,
}

impl Login {
    pub(super) fn new(users: Users) -> Self {
        Login { users, first: None, is_admitted: false }
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Answers the choice of a mechanism.
    pub(super) fn handshake(&mut self, body: &[u8]) -> Vec<u8> {
        let name = self.users.name();
        let error: u16 = if body[2..] == *name.as_bytes() { 0 } else { 33 };
        let known = [&1_u32.to_be_bytes()[..], &(name.len() as u16).to_be_bytes(), name.as_bytes()].concat();
        [&error.to_be_bytes()[..], &known].concat()
    }

    /// Answers a message of the mechanism.
    pub(super) fn authenticate(&mut self, body: &[u8]) -> Vec<u8> {
        let message = String::from_utf8_lossy(&body[4..]).into_owned();
        let answer = match self.users {
            Users::Plain => (message == format!("\0{USER}\0{PASSWORD}")).then(String::new),
            Users::Scram256 => self.scram::<Sha256>(64, &message),
            Users::Scram512 => self.scram::<Sha512>(128, &message),
        };
        self.is_admitted = answer.is_some() && (self.users == Users::Plain || message.contains(",p="));
        let (error, words) = if answer.is_some() { (0_u16, "") } else { (58, "wrong user or password") };
        let answer = answer.unwrap_or_default();
        [
            &error.to_be_bytes()[..],
            &(words.len() as u16).to_be_bytes(),
            words.as_bytes(),
            &(answer.len() as u32).to_be_bytes(),
            answer.as_bytes(),
        ]
        .concat()
    }

    /// Answers a message of SCRAM; `None` if it does not prove the password.
    fn scram<D: Digest>(&mut self, block: usize, message: &str) -> Option<String> {
        let Some((client, server)) = &self.first else {
            let bare = message.strip_prefix("n,,")?;
            let nonce = bare.strip_prefix(&format!("n={USER},r="))?;
            let server = format!("r={nonce}and ours,s={},i={ROUNDS}", STANDARD.encode(SALT));
            self.first = Some((bare.into(), server.clone()));
            return Some(server);
        };
        let (end, proof) = message.split_once(",p=")?;
        let signed = format!("{client},{server},{end}");
        let hmac = |key: &[u8], text: &[u8]| hmac::<D>(block, key, text);
        // PBKDF2 with one block.
        let mut round = hmac(PASSWORD.as_bytes(), &[SALT, &[0, 0, 0, 1]].concat());
        let mut salted = round.clone();
        for _ in 1..ROUNDS {
            round = hmac(PASSWORD.as_bytes(), &round);
            salted.iter_mut().zip(&round).for_each(|(sum, byte)| *sum ^= byte);
        }
        let stored = D::digest(hmac(&salted, b"Client Key")).to_vec();
        let proof = STANDARD.decode(proof).ok()?;
        let key: Vec<u8> =
            proof.iter().zip(hmac(&stored, signed.as_bytes())).map(|(own, byte)| own ^ byte).collect();
        let signature = hmac(&hmac(&salted, b"Server Key"), signed.as_bytes());
        (D::digest(key).to_vec() == stored).then(|| format!("v={}", STANDARD.encode(signature)))
    }
}

/// HMAC (RFC 2104) with a key that is not longer than a block of the hash.
fn hmac<D: Digest>(block: usize, key: &[u8], text: &[u8]) -> Vec<u8> {
    let pad =
        |with: u8| -> Vec<u8> { (0..block).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect() };
    let inner = D::digest([&pad(0x36)[..], text].concat());
    D::digest([&pad(0x5c)[..], &inner].concat()).to_vec()
}
