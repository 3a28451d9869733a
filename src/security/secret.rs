//! Secrets in environment variables and files.

use std::ffi::OsStr;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::SecurityError;
use crate::control::Control;

/// Maximum length in bytes. A NATS credentials file has about 1 KiB.
const LIMIT: usize = 16 << 10;

/// Permissions of users who are neither the owner nor of the group.
const OTHERS: u32 = 0o007;

/// A password, token or key. `Debug` does not print it, and it is wiped when dropped.
#[derive(Clone)]
pub(crate) struct Secret(Zeroizing<String>);

/// Where a secret is found, as named in a pipeline file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretReference {
    place: SecretLocation,
    /// Fields that name an environment variable and a file, such as `password_env` and
    /// `password_file`.
    fields: SecretFields,
    is_warned: WarnedOnce,
}

/// The two fields of a kind of secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecretFields {
    pub(crate) variable: &'static str,
    pub(crate) file: &'static str,
}

#[derive(Clone, PartialEq, Eq)]
enum SecretLocation {
    Variable(String),
    File {
        path: PathBuf,
        /// Whether the name of a file that is not there may be quoted.
        is_quotable: bool,
    },
}

/// Whether a warning was given, shared by all copies. Two settings are equal
/// whether or not they were used.
#[derive(Clone, Debug, Default)]
pub(crate) struct WarnedOnce(Arc<AtomicBool>);

impl WarnedOnce {
    /// Whether this is the first warning.
    pub(crate) fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

impl PartialEq for WarnedOnce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for WarnedOnce {}

impl Secret {
    /// The text, to be sent to a server and nowhere else.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Debug for SecretReference {
    /// Formats only the name of the field: its value may be the secret itself, by mistake.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field())
    }
}

impl SecretReference {
    pub(crate) fn variable(name: &str, fields: SecretFields) -> Self {
        let place = SecretLocation::Variable(name.into());
        SecretReference { place, fields, is_warned: WarnedOnce::default() }
    }

    /// The file at the path that is `written` in a pipeline file in the directory `base`.
    pub(crate) fn file(base: &Path, written: &str, fields: SecretFields) -> Self {
        let place =
            SecretLocation::File { path: base.join(written), is_quotable: is_quotable(Path::new(written)) };
        SecretReference { place, fields, is_warned: WarnedOnce::default() }
    }

    /// Name of the field that names the secret.
    pub(crate) fn field(&self) -> &'static str {
        match &self.place {
            SecretLocation::Variable(_) => self.fields.variable,
            SecretLocation::File { .. } => self.fields.file,
        }
    }

    /// Reads a secret of one line, without one line end after it. Warns once if other users may
    /// read its file.
    ///
    /// # Errors
    /// If it is missing or empty, has several lines, or is too long.
    pub(crate) fn read(&self, control: &Control) -> Result<Secret, SecurityError> {
        let secret = self.read_text(control)?;
        let line = secret.0.strip_suffix('\n').unwrap_or(&secret.0);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.contains(char::is_control) {
            return Err(self.form());
        }
        Ok(Secret(Zeroizing::new(line.into())))
    }

    /// As [`read`](Self::read), for a secret that may have several lines.
    ///
    /// # Errors
    /// If it is missing or too long, or is not UTF-8.
    pub(crate) fn read_text(&self, control: &Control) -> Result<Secret, SecurityError> {
        let SecretFields { variable: field, file: field_of_file } = self.fields;
        let (path, is_quotable) = match &self.place {
            SecretLocation::Variable(name) => {
                let value = std::env::var(name).map_err(|_| SecurityError::Variable { field, field_of_file });
                let value = Zeroizing::new(value?);
                return if value.len() <= LIMIT { Ok(Secret(value)) } else { Err(self.form()) };
            }
            SecretLocation::File { path, is_quotable } => (path, *is_quotable),
        };
        // A secret in the wrong field may hold slashes, and then no such directory exists.
        let is_quotable = is_quotable && path.parent().is_some_and(Path::is_dir);
        let failed = |source| match path.symlink_metadata() {
            Ok(_) => SecurityError::File { field: field_of_file, path: path.clone(), source },
            Err(_) if is_quotable => {
                SecurityError::SecretFile { field: field_of_file, path: path.clone(), source }
            }
            Err(_) => SecurityError::HiddenFile { field: field_of_file, source },
        };
        // Opening a pipe without a writer would block.
        let without_waiting = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path).map_err(failed)?;
        // Permissions are those of the opened file.
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(self.form());
        }
        let mode = metadata.mode() & 0o7777;
        if mode & OTHERS != 0 && self.is_warned.is_first() {
            control.notice(&format!(
                "the file {0} of {field_of_file} has mode {mode:04o}, so every user of this machine may use it: chmod o= {0}",
                path.display()
            ));
        }
        // Full capacity from the start: a growing text leaves copies in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(2 * LIMIT));
        match file.take(LIMIT as u64 + 1).read_to_string(&mut text) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(self.form()),
            read => read.map_err(failed)?,
        };
        if text.len() <= LIMIT { Ok(Secret(text)) } else { Err(self.form()) }
    }

    fn form(&self) -> SecurityError {
        self.unusable("a secret: one line without control characters, of at most 16 KiB")
    }

    /// The error for a secret that does not have the `expected` form.
    pub(crate) fn unusable(&self, expected: &'static str) -> SecurityError {
        let subject = match &self.place {
            SecretLocation::Variable(_) => format!("the environment variable of {}", self.fields.variable),
            SecretLocation::File { path, .. } => {
                format!("the file {} of {}", path.display(), self.fields.file)
            }
        };
        SecurityError::Form { subject, expected }
    }
}

/// Endings of the names of files with secrets.
const SECRET_FILES: [&str; 8] = ["creds", "key", "nk", "password", "pem", "secret", "token", "txt"];

/// Whether a written path is surely not a secret in the wrong field: it is in a directory from the
/// root on, or ends as files with secrets do.
fn is_quotable(written: &Path) -> bool {
    let is_in_directory = written.is_absolute() && written.components().count() > 2;
    let extension = written.extension().and_then(OsStr::to_str);
    is_in_directory || extension.is_some_and(|extension| SECRET_FILES.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    const FIELDS: SecretFields = SecretFields { variable: "password_env", file: "password_file" };

    #[test]
    fn a_file_holds_one_line_and_is_read_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let reference = SecretReference::file(directory.path(), "secret", FIELDS);
        let check = |content: &[u8], expected: Option<&str>| {
            fs::write(&path, content).unwrap();
            let found = reference.read(&Control::new());
            assert_eq!(found.as_ref().ok().map(Secret::text), expected, "{content:?}");
            let shown =
                format!("{found:?} {}", found.as_ref().map_or_else(ToString::to_string, |_| String::new()));
            assert!(!shown.contains("hidden"), "{shown}");
        };
        check(b"hidden\n", Some("hidden"));
        check(b"hidden\r\n", Some("hidden"));
        check(b" hidden word ", Some(" hidden word "));
        check(b"hidden\n\n", None);
        check(b"hidden\nword\n", None);
        check(b"\n", None);
        check(b"", None);
        check(b"\xff", None);
        check(&[b'x'; LIMIT + 1], None);
        fs::write(&path, "hidden\nword\n").unwrap();
        assert_eq!(reference.read_text(&Control::new()).unwrap().text(), "hidden\nword\n");
        fs::remove_file(&path).unwrap();
        let error = SecretReference::file(directory.path(), ".", FIELDS).read(&Control::new());
        assert!(matches!(error, Err(SecurityError::Form { .. })), "{error:?}");
        // The name of a missing file is quoted unless it may be the secret itself.
        let folder = directory.path().display().to_string();
        let missing = |written: &str| {
            let error = SecretReference::file(directory.path(), written, FIELDS).read(&Control::new());
            let error = error.unwrap_err().to_string();
            assert!(error.contains("password_file"), "{error}");
            error.contains(written)
        };
        assert!(missing("broker.password") && missing(&format!("{folder}/broker")));
        assert!(
            !missing("hidden") && !missing("hid.den") && !missing("hid/den+==") && !missing("hid/den.key")
        );
        assert!(!missing("/hid/den"));
    }

    #[test]
    fn a_variable_is_not_named_in_messages() {
        let reference = SecretReference::variable("HUSHFLOW_HIDDEN", FIELDS);
        let error = reference.read(&Control::new()).unwrap_err();
        let shown = format!("{reference:?} {error:?} {error}");
        assert!(shown.contains("password_env") && !shown.contains("HIDDEN"), "{shown}");
        let path = SecretReference::variable("PATH", FIELDS).read(&Control::new()).unwrap();
        assert_eq!(path.text(), std::env::var("PATH").unwrap());
        assert_eq!(format!("{path:?}"), "Secret");
    }

    #[test]
    fn a_file_that_others_may_use_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "hidden").unwrap();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&notices);
        let control = Control::new().on_notice(move |notice| heard.lock().unwrap().push(notice.to_owned()));
        let check = |mode, expected: usize| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let reference = SecretReference::file(directory.path(), "secret", FIELDS);
            (0..2).for_each(|_| assert!(reference.clone().read(&control).is_ok()));
            let notices = std::mem::take(&mut *notices.lock().unwrap());
            assert_eq!(notices.len(), expected, "{mode:o}: {notices:?}");
            assert!(notices.iter().all(|notice| notice.contains("chmod") && !notice.contains("hidden")));
        };
        check(0o600, 0);
        check(0o640, 0);
        check(0o644, 1);
        check(0o602, 1);
    }
}
