//! Key files: the secret shared by the processes of a cluster, which also admits senders to a
//! source.
//!
//! A key file is one line, `hushflow-key-1:` and 64 hexadecimal digits: 32 bytes of the system's
//! entropy. It is made with mode 0600 and refused if another user may read or write it. The
//! keys of a cluster's encrypted links are derived from it (`runtime::link`). A sender presents a
//! [`Token`], a hash of the key. Without TLS a token is sent in the clear. A person who sees it can
//! write to the source but can't join a cluster.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rand::{TryRng, rngs::SysRng};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

const PREFIX: &str = "hushflow-key-1:";
const BYTES: usize = 32;

/// Prefix, digits and a line end of two bytes.
const LONGEST_FILE: usize = PREFIX.len() + 2 * BYTES + 2;

/// Prefix of the input to a token's hash.
const TOKEN_LABEL: &[u8] = b"hushflow source token 1\0";

/// Permissions of group and others.
const OTHERS: u32 = 0o077;

/// A shared secret. It is never printed, and wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey(Zeroizing<[u8; BYTES]>);

/// Token that a sender presents to a source, as the first line of a connection: 64 hexadecimal
/// digits. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

/// Reasons why a key file can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file can't be read.
    #[error("the key file {} can't be read: {source}; `hushflow key FILE` makes one", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file can't be created.
    #[error("the key file {} can't be made: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file exists already.
    #[error(
        "{} exists, and a key is never overwritten: name another file, or delete this one if nothing uses it", path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Users other than the owner may read or write it.
    #[error(
        "the key file {0} has mode {mode:04o}, so others can read or write it: chmod 600 {0}, and make a new key if \
         somebody may have read it",
        path.display()
    )]
    Shared {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is not a key file.
    #[error("{} holds no key: expected one line, {PREFIX} and 64 hexadecimal digits", path.display())]
    Form {
        /// The file.
        path: PathBuf,
    },
}

impl SharedKey {
    /// Creates a key file with mode 0600. It is on disk when this returns.
    ///
    /// # Errors
    /// [`KeyError::Exists`] if the file exists; [`KeyError::Create`].
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyError::Exists { path: path.into() },
            _ => KeyError::Create { path: path.into(), source },
        };
        let mut bytes = Zeroizing::new([0; BYTES]);
        SysRng
            .try_fill_bytes(&mut *bytes)
            .map_err(|error| failed(io::Error::other(format!("no entropy: {error}"))))?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(failed)?;
        let line = Zeroizing::new(format!("{PREFIX}{}\n", *digits(&bytes)));
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(SharedKey(bytes))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`KeyError`] if it can't be read, is not a key file, or other users may read or write it.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.into(), source };
        let form = || KeyError::Form { path: path.into() };
        // Permissions are those of the opened file, so nobody can change them in between. Opening a
        // pipe without a writer would block.
        let without_waiting = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(form());
        }
        if metadata.mode() & OTHERS != 0 {
            return Err(KeyError::Shared { path: path.into(), mode: metadata.mode() & 0o7777 });
        }
        // Full capacity from the start: a growing text leaves copies in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(2 * LONGEST_FILE));
        match file.take(LONGEST_FILE as u64 + 1).read_to_string(&mut text) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(form()),
            read => read.map_err(failed)?,
        };
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let digits = line.strip_prefix(PREFIX).ok_or_else(form)?;
        parsed(digits.as_bytes()).map(SharedKey).ok_or_else(form)
    }

    /// Returns the token that a sender presents to a source with this key.
    pub fn token(&self) -> Token {
        let hash = Sha256::new().chain_update(TOKEN_LABEL).chain_update(*self.0).finalize();
        let hash = Zeroizing::new(<[u8; BYTES]>::from(hash));
        Token(digits(&hash))
    }

    /// Returns the secret itself.
    pub(crate) fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl Token {
    /// Number of digits.
    pub const LENGTH: usize = 2 * BYTES;

    /// The digits.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// Returns whether a line is this token. The time taken does not depend on where they differ.
    pub(crate) fn agrees(&self, line: &[u8]) -> bool {
        let own = self.0.as_bytes();
        line.len() == own.len()
            && own.iter().zip(line).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn digits(bytes: &[u8; BYTES]) -> Zeroizing<String> {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    let mut text = Zeroizing::new(String::with_capacity(2 * BYTES));
    bytes.iter().for_each(|byte| text.extend([digit(byte >> 4), digit(byte & 15)]));
    text
}

fn parsed(digits: &[u8]) -> Option<Zeroizing<[u8; BYTES]>> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |index: usize| char::from(pair[index]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_file_is_created_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        let key = SharedKey::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(SharedKey::load(&path).unwrap() == key);
        assert!(matches!(SharedKey::create(&path), Err(KeyError::Exists { .. })));
        assert!(SharedKey::load(&path).unwrap() == key, "it is as it was");
        assert!(SharedKey::create(&directory.path().join("other.key")).unwrap() != key);
        for mode in [0o640, 0o604, 0o620, 0o602, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = SharedKey::load(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(SharedKey::load(&path).is_ok());
    }

    #[test]
    fn bad_keys_are_refused_and_not_printed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        SharedKey::create(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let check = |content: &[u8], accepted: bool| {
            fs::write(&path, content).unwrap();
            let loaded = SharedKey::load(&path);
            assert_eq!(loaded.is_ok(), accepted, "{}", String::from_utf8_lossy(content));
            let shown = format!("{loaded:?}");
            assert!(!shown.contains(text.trim_start_matches(PREFIX).trim()), "{shown}");
        };
        check(text.trim().as_bytes(), true);
        check(text.replace('\n', "\r\n").as_bytes(), true);
        check(format!("{text}\n").as_bytes(), false);
        check(&text.as_bytes()[1..], false);
        check(text.replacen(':', ":+", 1).as_bytes(), false);
        check(&text.as_bytes()[..text.len() - 2], false);
        check(b"", false);
        check(b"\xff\xfe", false);
        check(&[b'0'; 1 << 20], false);
        assert!(matches!(SharedKey::load(directory.path()), Err(KeyError::Form { .. })));
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(matches!(SharedKey::load(&pipe), Err(KeyError::Form { .. })), "it is not waited for");
        assert!(matches!(SharedKey::load("/no/such/key".as_ref()), Err(KeyError::Read { .. })));
    }

    #[test]
    fn a_token_follows_from_the_key_and_does_not_show_it() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| SharedKey::create(&directory.path().join(name)).unwrap());
        let token = a.token();
        assert_eq!(token.digits().len(), Token::LENGTH);
        assert!(token == a.token() && token != b.token());
        assert!(token.digits() != digits(a.bytes()).as_str());
        assert!(token.agrees(token.digits().as_bytes()));
        assert!(!token.agrees(b.token().digits().as_bytes()) && !token.agrees(b""));
        assert!(!format!("{token:?}").contains(token.digits()));
    }
}
