//! Real servers for tests, on free ports with separate storage, and connections to them that can be
//! cut.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Returns the path of a program, also from directories where servers are installed.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin";
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound port").port()
}

/// A server that stores its streams in a directory.
pub(crate) struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    pub(crate) port: u16,
    child: Option<Child>,
}

impl Server {
    /// Redis that writes every entry to its file before it answers.
    pub(crate) fn redis(program: PathBuf, directory: &Path) -> Self {
        Self::redis_with(program, directory, &[])
    }

    /// As [`redis`](Self::redis), with more arguments.
    pub(crate) fn redis_with(program: PathBuf, directory: &Path, more: &[String]) -> Self {
        let port = free_port();
        let arguments = format!(
            "--port {port} --bind 127.0.0.1 --save --appendonly yes --appendfsync always --dir {}",
            directory.display()
        );
        let mut arguments: Vec<String> = arguments.split(' ').map(String::from).collect();
        // No snapshots.
        let save = arguments.iter().position(|argument| argument == "--save").expect("an argument");
        arguments.insert(save + 1, String::new());
        // Redis reads the words of an option as arguments of their own.
        arguments.extend(more.iter().flat_map(|argument| argument.split(' ')).map(String::from));
        Self::begin(program, arguments, port)
    }

    /// NATS with JetStream.
    pub(crate) fn nats(program: PathBuf, directory: &Path) -> Self {
        let port = free_port();
        let arguments = format!("-js -a 127.0.0.1 -p {port} -sd {}", directory.display());
        Self::begin(program, arguments.split(' ').map(String::from).collect(), port)
    }

    /// NATS with the configuration file that `configure` writes for a port and a directory.
    pub(crate) fn nats_with(
        program: PathBuf,
        directory: &Path,
        configure: impl FnOnce(u16, &Path) -> PathBuf,
    ) -> Self {
        let port = free_port();
        let config = configure(port, directory).into_os_string().into_string().expect("UTF-8");
        Self::begin(program, vec!["-c".into(), config], port)
    }

    fn begin(program: PathBuf, arguments: Vec<String>, port: u16) -> Self {
        let mut server = Server { program, arguments, port, child: None };
        server.start();
        server
    }

    pub(crate) fn start(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the server starts"));
        crate::harness::await_until("the server listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// Kills the server: a power cut, except that the system's cache survives.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child ends");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port forwarded to another one until it is cut.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("a bound port").port();
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let kept = Arc::clone(&open);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // If the server is away, the client is disconnected.
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let pair = [client, server];
                let [a, b] = pair.each_ref().map(|stream| stream.try_clone().expect("a handle"));
                let [c, d] = pair.each_ref().map(|stream| stream.try_clone().expect("a handle"));
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(pair);
                std::thread::spawn(move || pass(a, b));
                std::thread::spawn(move || pass(d, c));
            }
        });
        Proxy { port: own, open }
    }

    /// Cuts all connections, possibly within a message.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A client that sends and reads lines.
pub(crate) struct Client {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn new(port: u16) -> Self {
        let writer = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        writer.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        writer.set_nodelay(true).expect("no delay");
        let reader = BufReader::new(writer.try_clone().expect("a handle"));
        Client { writer, reader }
    }

    fn say(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).expect("the server listens");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("the server answers");
        line.trim_end().into()
    }

    fn bytes(&mut self, count: usize) -> String {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).expect("the server answers");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a command to Redis; returns the first line of the answer, and the text if it is one.
    pub(crate) fn redis(&mut self, parts: &[&str]) -> String {
        let mut command = format!("*{}\r\n", parts.len());
        parts.iter().for_each(|part| command.push_str(&format!("${}\r\n{part}\r\n", part.len())));
        self.say(&command);
        let line = self.line();
        match line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
            Some(length) => self.bytes(length + 2).trim_end().into(),
            None => line,
        }
    }

    /// Sends a command to Redis; returns all texts of the answer.
    pub(crate) fn redis_texts(&mut self, parts: &[&str]) -> Vec<String> {
        let first = self.redis(parts);
        let mut texts = Vec::new();
        let mut left = first.strip_prefix('*').map_or(0, |length| length.parse().expect("a length"));
        while left > 0 {
            let line = self.line();
            left -= 1;
            let length = || line[1..].parse::<usize>().expect("a length");
            match line.split_at(1).0 {
                "*" => left += length(),
                "$" => {
                    let text = self.bytes(length() + 2);
                    texts.push(text[..length()].into());
                }
                _ => texts.push(line),
            }
        }
        texts
    }

    /// Returns the payload of the message with this number in a JetStream stream with direct
    /// access.
    pub(crate) fn nats_message(&mut self, stream: &str, number: u64) -> Option<String> {
        let question = format!("{{\"seq\":{number}}}");
        self.say(&format!("PUB $JS.API.DIRECT.GET.{stream} answer {}\r\n{question}\r\n", question.len()));
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["PING"] => self.say("PONG\r\n"),
                ["HMSG", .., head, total] => {
                    let [head, total] =
                        [head, total].map(|length| length.parse::<usize>().expect("a length"));
                    let text = self.bytes(total + 2);
                    return (!text.starts_with("NATS/1.0 404")).then(|| text[head..total].into());
                }
                _ => {}
            }
        }
    }

    /// Connects to NATS once its JetStream is ready.
    pub(crate) fn nats(port: u16) -> Self {
        let mut client = Client::new(port);
        assert!(client.line().starts_with("INFO"));
        client.say(
            "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB answer 1\r\nPING\r\n",
        );
        while client.line() != "PONG" {}
        while client.nats_ask("$JS.API.INFO", "", "").contains("\"error\"") {
            std::thread::sleep(Duration::from_millis(20));
        }
        client
    }

    /// Publishes a message with these headers and returns the answer.
    pub(crate) fn nats_ask(&mut self, subject: &str, headers: &str, payload: &str) -> String {
        let head = format!("NATS/1.0\r\n{headers}\r\n");
        let (length, total) = (head.len(), head.len() + payload.len());
        self.say(&format!("HPUB {subject} answer {length} {total}\r\n{head}{payload}\r\n"));
        loop {
            let line = self.line();
            match line.split(' ').next() {
                Some("PING") => self.say("PONG\r\n"),
                Some("MSG" | "HMSG") => {
                    let length = line.rsplit(' ').next().and_then(|length| length.parse::<usize>().ok());
                    let text = self.bytes(length.expect("a length") + 2);
                    return if line.starts_with('H') { "{\"error\": \"status\"}".into() } else { text };
                }
                _ => {}
            }
        }
    }
}
