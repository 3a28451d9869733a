//! A PostgreSQL server for tests, from Debian's packages, and its command-line client.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use tempfile::TempDir;

use crate::harness::await_until;
use crate::servers::free_port;

/// Directory in which Debian installs the programs of each version.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// The user `nobody`: the server refuses to run as root.
const NOBODY: u32 = 65_534;

/// A server with an empty database `test`. All users may log in without a password, except `reader`
/// and `guest`.
pub(crate) struct PostgresServer {
    programs: PathBuf,
    directory: TempDir,
    pub(crate) port: u16,
    child: Option<Child>,
}

/// A session that stays open.
pub(crate) struct Session {
    child: Child,
    input: ChildStdin,
}

/// Returns the directory of the newest version's programs. Without any version, prints that the
/// test is skipped.
pub(crate) fn installed() -> Option<PathBuf> {
    let versions =
        fs::read_dir(PROGRAMS).into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let newest = versions.filter(|programs| programs.join("initdb").is_file()).max();
    if newest.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: PostgreSQL is not installed");
    }
    newest
}

impl PostgresServer {
    pub(crate) fn new(programs: PathBuf) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        if rustix::process::geteuid().is_root() {
            chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("the directory has an owner");
        }
        let mut server = PostgresServer { programs, directory, port: free_port(), child: None };
        let data = server.data();
        let made = server
            .program("initdb")
            .args(["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(&data)
            .output()
            .expect("initdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let access = fs::read_to_string(data.join("pg_hba.conf")).expect("rules of access");
        let rules = "host all reader,guest 127.0.0.1/32 scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), format!("{rules}{access}")).expect("rules of access");
        server.start();
        server.sql_in("postgres", "CREATE DATABASE test");
        server
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A program of the server, which runs as an ordinary user.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Lets the server offer TLS, with a certificate for 127.0.0.1, and restarts it. Returns the
    /// folder of the certificate's root, `ca.pem`, and of another root, `other.pem`; `None` without
    /// the command `openssl`.
    pub(crate) fn offer_tls(&mut self) -> Option<PathBuf> {
        let folder = self.directory.path().join("tls");
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1").expect("a file");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        for arguments in [
            format!("req -x509 {key} -keyout ca.key -out ca.pem -days 3650 -subj /CN=root"),
            format!("req -x509 {key} -keyout other.key -out other.pem -days 3650 -subj /CN=root"),
            format!("req {key} -keyout server.key -out server.csr -subj /CN=server"),
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 -out server.crt -extfile names"
                .into(),
        ] {
            let mut command = Command::new("openssl");
            let made = command.args(arguments.split(' ')).current_dir(&folder).output().ok();
            let Some(made) = made else {
                let _ = writeln!(std::io::stderr(), "skipped: openssl is not installed");
                return None;
            };
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        for file in ["server.key", "server.crt"] {
            let path = self.data().join(file);
            fs::copy(folder.join(file), &path).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
            if rustix::process::geteuid().is_root() {
                chown(&path, Some(NOBODY), Some(NOBODY)).expect("the file has an owner");
            }
        }
        self.sql_in("postgres", "ALTER SYSTEM SET ssl = on");
        self.kill();
        self.start();
        Some(folder)
    }

    /// Trusts client certificates of the roots in this file. Only this rule of access admits
    /// `reader`.
    pub(crate) fn require_certificates(&mut self, roots: &Path, rule: &str) {
        let path = self.data().join("clients.pem");
        fs::copy(roots, &path).expect("a file");
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).expect("the file has an owner");
        }
        let rules = format!("{rule}\nhost all postgres 127.0.0.1/32 trust\n");
        fs::write(self.data().join("pg_hba.conf"), rules).expect("rules of access");
        self.sql_in("postgres", "ALTER SYSTEM SET ssl_ca_file = 'clients.pem'");
        self.kill();
        self.start();
    }

    pub(crate) fn start(&mut self) {
        let settings = [
            "fsync=off",
            "listen_addresses=127.0.0.1",
            "max_prepared_transactions=5",
            "unix_socket_directories=",
        ];
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        for setting in settings {
            command.args(["-c", setting]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the server starts"));
        await_until("the server answers", || self.psql("postgres", "SELECT 1").is_ok());
    }

    /// Ends the server with SIGQUIT, which has the effect of a crash.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let status = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            assert!(status.expect("a signal is sent").success());
            child.wait().expect("a child ends");
        }
    }

    fn client(&self, database: &str) -> Command {
        let mut command = self.program("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
        command.args(["-p", &self.port.to_string(), "-d", database]);
        command
    }

    fn psql(&self, database: &str, text: &str) -> Result<String, String> {
        let mut command = self.client(database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the client starts");
        // A client that can't log in reads nothing.
        let _ = writeln!(child.stdin.take().expect("a pipe"), "{text};");
        let output = child.wait_with_output().expect("the client ends");
        let words = |bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(words(&output.stdout)) } else { Err(words(&output.stderr)) }
    }

    fn sql_in(&self, database: &str, text: &str) -> String {
        self.psql(database, text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Runs statements and returns the rows, their fields separated by bars.
    pub(crate) fn sql(&self, text: &str) -> String {
        self.sql_in("test", text)
    }

    /// Begins a session that runs statements one after the other.
    pub(crate) fn session(&self) -> Session {
        let mut command = self.client("test");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("the client starts");
        let input = child.stdin.take().expect("a pipe");
        Session { child, input }
    }
}

impl Session {
    /// Sends statements without waiting for them.
    pub(crate) fn run(&mut self, text: &str) {
        writeln!(self.input, "{text};").expect("the client reads");
    }

    /// Ends the session once it has run everything.
    pub(crate) fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().expect("the client ends").success());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}
