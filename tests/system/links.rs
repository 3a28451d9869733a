//! The links of a cluster, seen from outside: strangers, impostors, a recorder of network traffic,
//! and processes that end before all are connected.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::harness::{
    Lab, Random, Stream, await_until, expected_sums, finish, hushflow, releases, run, sums, wait,
};

const STREAM: Stream = Stream { rows: 4000, epochs: 40 };

/// A pipeline, its state directory, a key file, and addresses for its processes.
struct LinkedRun {
    lab: Lab,
    pipeline: PathBuf,
    hosts: Vec<String>,
}

impl LinkedRun {
    fn new(processes: usize) -> Self {
        let lab = Lab::new();
        lab.write("data.csv", STREAM.csv());
        let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", ""));
        let case = LinkedRun { pipeline, hosts: free_addresses(processes), lab };
        case.key("cluster.key");
        case
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    /// Makes a new key file.
    fn key(&self, name: &str) -> PathBuf {
        let path = self.lab.path(name);
        finish(hushflow(["key", "--json"]).arg(&path)).succeeded();
        path
    }

    /// A process with these addresses and this key file, if any.
    fn process(&self, number: usize, hosts: &[String], key: Option<&Path>) -> Command {
        self.process_over(&self.state(), number, hosts, key)
    }

    fn process_over(&self, state: &Path, number: usize, hosts: &[String], key: Option<&Path>) -> Command {
        let mut command = run(&self.pipeline, state, 1);
        command.args(["--log", "info", "--hosts", &hosts.join(","), "--process", &number.to_string()]);
        if let Some(key) = key {
            command.arg("--key").arg(key);
        }
        command
    }

    /// Starts a process of the cluster; returns its output lines too.
    fn start(&self, number: usize) -> (Child, Receiver<String>) {
        self.start_as(number, &self.hosts)
    }

    fn start_as(&self, number: usize, hosts: &[String]) -> (Child, Receiver<String>) {
        let mut command = self.process(number, hosts, Some(&self.lab.path("cluster.key")));
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the process starts");
        let (sender, lines) = channel();
        let err = BufReader::new(child.stderr.take().expect("a pipe"));
        thread::spawn(move || err.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        (child, lines)
    }

    fn check(&self, processes: Vec<(Child, Receiver<String>)>) -> String {
        let mut messages = String::new();
        for (child, lines) in processes {
            let ended = wait(child);
            let lines: Vec<_> = lines.iter().collect();
            messages += &lines.join("\n");
            assert_eq!(ended.code, Some(0), "{messages}");
        }
        assert!(sums(&self.state()) == expected_sums(&self.pipeline), "as computed row by row");
        messages
    }
}

fn free_addresses(number: usize) -> Vec<String> {
    let ports: Vec<_> = (0..number).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    ports.iter().map(|port| port.local_addr().expect("a bound port").to_string()).collect()
}

fn connect(address: &str) -> TcpStream {
    let mut found = None;
    await_until("the process listens", || {
        found = TcpStream::connect(address).ok();
        found.is_some()
    });
    found.expect("a connection")
}

/// Waits until the process prints this text.
fn await_line(lines: &Receiver<String>, part: &str) -> String {
    let line =
        |()| lines.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("nothing of {part:?}"));
    std::iter::repeat(()).map(line).find(|line| line.contains(part)).expect("an endless search")
}

/// Checks both phases: before all are connected, and during the run.
#[test]
fn random_bytes_and_silence_neither_stop_nor_join_a_cluster() {
    let case = LinkedRun::new(2);
    let first = case.start(0);
    let mut random = Random(14);
    let mut stranger = |address: &str| {
        let length = 24 + random.below(977) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        // A dropped stranger may notice it while writing.
        TcpStream::connect(address).and_then(|mut stream| stream.write_all(&bytes).map(|()| stream))
    };
    // A greeting in plain text must not end the first process.
    let plain = [&b"hushflow"[..], &[1, 0, 0, 0], &[1, 0, 0, 0], &[1, 0, 0, 0], &[0xde, 0xad, 0xbe, 0xef]];
    let mut silent = vec![connect(&case.hosts[0])];
    connect(&case.hosts[0]).write_all(&plain.concat()).expect("the process listens");
    for _ in 0..250 {
        drop(stranger(&case.hosts[0]));
        silent.extend(TcpStream::connect(&case.hosts[0]));
    }
    let second = case.start(1);
    await_until("the cluster publishes", || !releases(&case.state()).is_empty());
    for _ in 0..50 {
        case.hosts.iter().for_each(|address| drop(stranger(address)));
    }
    let messages = case.check(vec![first, second]);
    assert!(messages.contains("callers that are not processes of this cluster were dropped"), "{messages}");
}

#[test]
fn impostors_are_refused() {
    let case = LinkedRun::new(3);
    let ours = case.lab.path("cluster.key");
    let elsewhere = |number: usize| {
        let mut hosts = case.hosts.clone();
        hosts[number] = free_addresses(1).remove(0);
        hosts
    };
    let first = case.start(0);
    await_until("it listens", || TcpStream::connect(&case.hosts[0]).is_ok());
    // Two processes without the right key. They keep trying.
    let wrong = case.key("other.key");
    let outside = [Some(wrong.as_path()), None].map(|key| {
        let mut impostor = case.process(2, &elsewhere(2), key);
        impostor.spawn().expect("the process starts")
    });
    let third = case.start(2);
    await_line(&first.1, "another process has called");
    // One process with the key, but with the number of a connected process.
    finish(&mut case.process(2, &elsewhere(2), Some(&ours))).failed(1, &["number of this one"]);
    let second = case.start(1);
    case.check(vec![first, second, third]);
    for mut impostor in outside {
        impostor.kill().expect("a child can be killed");
        let ended = wait(impostor);
        assert!(!ended.err.contains("was reached"), "{}", ended.err);
    }
}

#[test]
fn a_kill_during_bootstrap_ends_all_processes_at_once() {
    let case = LinkedRun::new(3);
    let (first, first_says) = case.start(0);
    let (mut third, _third_says) = case.start(2);
    await_line(&first_says, "another process has called");
    third.kill().expect("a child can be killed");
    wait(third);
    // The error comes at once, without the usual minute of waiting for a missing process.
    await_line(&first_says, "process 2 has ended before the run began");
    assert_eq!(wait(first).code, Some(1));
}

/// The first process waits for a header. The others connect to it meanwhile, and it notices when
/// one of them ends.
#[test]
fn a_silent_source_does_not_keep_processes_from_connecting() {
    let mut case = LinkedRun::new(2);
    let from_file = case.pipeline.clone();
    case.pipeline = case.lab.write("silent.toml", STREAM.pipeline("-", ""));
    let met = |case: &LinkedRun| {
        let ((first, first_says), (second, second_says)) = (case.start(0), case.start(1));
        await_line(&first_says, "another process has called");
        await_line(&second_says, "another process was reached");
        (first, first_says, second)
    };
    let (first, first_says, mut second) = met(&case);
    second.kill().expect("a child can be killed");
    wait(second);
    await_line(&first_says, "process 1 has ended before the run began");
    assert_eq!(wait(first).code, Some(1));
    let (mut first, _first_says, second) = met(&case);
    let mut input = first.stdin.take().expect("a pipe");
    input.write_all(STREAM.csv().as_bytes()).expect("the run reads");
    drop(input);
    assert_eq!([first, second].map(|process| wait(process).code), [Some(0), Some(0)]);
    assert!(sums(&case.state()) == expected_sums(&from_file), "as computed row by row");
}

/// A proxy that records the traffic in both directions.
fn recorder(to: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound port").to_string();
    let record: Arc<Mutex<Vec<u8>>> = Arc::default();
    let recorder = Arc::clone(&record);
    thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let Ok(called) = TcpStream::connect(&to) else { continue };
            for (from, to) in [(&caller, &called), (&called, &caller)] {
                let ends = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
                let recorder = Arc::clone(&recorder);
                thread::spawn(move || copy(ends, &recorder));
            }
        }
    });
    (address, record)
}

fn copy((mut from, mut to): (TcpStream, TcpStream), kept: &Mutex<Vec<u8>>) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut bytes)?;
        if read == 0 {
            return to.shutdown(Shutdown::Write);
        }
        kept.lock().expect("a record").extend_from_slice(&bytes[..read]);
        to.write_all(&bytes[..read])?;
    }
}

/// Needles have at least 8 bytes: among a few thousand of them, one occurs in a megabyte of random
/// bytes with probability below 10⁻⁹.
fn find<'a>(needles: &'a [(String, Vec<u8>)], record: &[u8]) -> Option<&'a str> {
    let mut first = vec![Vec::new(); 1 << 16];
    for (name, needle) in needles {
        assert!(needle.len() >= 8, "{name}");
        first[usize::from(needle[0]) << 8 | usize::from(needle[1])].push((name, needle));
    }
    let begins = record.windows(2).enumerate();
    let mut found = begins.flat_map(|(at, pair)| {
        first[usize::from(pair[0]) << 8 | usize::from(pair[1])].iter().map(move |needle| (at, *needle))
    });
    found.find(|(at, (_, needle))| record[*at..].starts_with(needle)).map(|(_, (name, _))| name.as_str())
}

#[test]
fn a_recording_of_the_network_holds_no_name_no_sum_no_row_and_no_key() {
    let mut case = LinkedRun::new(2);
    let text = STREAM.csv();
    let rows = text.lines().skip(1).zip(0..).map(|(row, at)| format!("{row},entity-number-{}\n", at % 97));
    let text = format!("{},user\n{}", text.lines().next().expect("a header"), rows.collect::<String>());
    case.lab.write("data.csv", text.replace(",k", ",key-number-").replace(",key-number-ey,", ",key,"));
    let entity = "[entity]\ncolumn = 'user'\nparticipations = 20\n";
    let pipeline = STREAM
        .pipeline("data.csv", entity)
        .replace("[privacy]", "[privacy]\nunit = 'entity'")
        .replace("'k", "'key-number-")
        .replace("'key-number-ey'", "'key'");
    case.pipeline = case.lab.write("pipeline.toml", pipeline);
    for keyed in [true, false] {
        let (through, record) = recorder(case.hosts[0].clone());
        let key = Some(case.lab.path("cluster.key")).filter(|_| keyed);
        let state = case.lab.path(if keyed { "keyed" } else { "keyless" });
        let processes = [case.hosts[0].clone(), through].into_iter().enumerate().map(|(process, first)| {
            let hosts = [first, case.hosts[1].clone()];
            case.process_over(&state, process, &hosts, key.as_deref()).spawn().expect("the process starts")
        });
        for child in processes.collect::<Vec<_>>() {
            wait(child).succeeded();
        }
        let record = record.lock().expect("a record");
        assert!(record.len() > 20_000, "{} bytes were recorded", record.len());

        let mut needles: Vec<(String, Vec<u8>)> = Vec::new();
        let mut add = |what: String, bytes: &[u8]| needles.push((what, bytes.to_vec()));
        (0..97).for_each(|at| add(format!("entity {at}"), format!("entity-number-{at}").as_bytes()));
        (0..7).for_each(|key| add(format!("key {key}"), format!("key-number-{key}").as_bytes()));
        add("a column".into(), b"key-number-");
        let text = std::fs::read_to_string(case.lab.path("cluster.key")).expect("a key");
        let digits = text.trim().split(':').nth(1).expect("a prefix");
        add("the key's digits".into(), digits.as_bytes());
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits");
        add("the key".into(), &(0..32).map(byte).collect::<Vec<_>>());
        for (epoch, sums) in sums(&state).into_iter().enumerate() {
            // Small sums might occur anywhere.
            for sum in sums.into_iter().filter(|sum| sum.unsigned_abs() >> 40 > 0) {
                add(format!("a sum of epoch {}", epoch + 1), &(sum as i64).to_le_bytes());
            }
        }
        for row in STREAM.csv().lines().skip(1) {
            for field in row.split(',').skip(3).filter(|field| !field.ends_with("000")) {
                let value: f64 = field.parse().expect("a number");
                if value.to_le_bytes().iter().filter(|&&byte| byte != 0).count() >= 6 {
                    add("a row's value".into(), &value.to_le_bytes());
                }
            }
        }
        assert!(needles.len() > 5000, "{} needles", needles.len());
        assert_eq!(find(&needles, &record), None, "with a key: {keyed}");
        let planted = [&record[..], &needles[needles.len() - 1].1, &[0]].concat();
        assert!(find(&needles, &planted).is_some(), "what is there is found");
    }
}

#[test]
fn without_a_key_only_loopback_addresses_are_accepted() {
    let case = LinkedRun::new(1);
    let hosts = [case.hosts[0].clone(), "192.0.2.7:2101".to_owned()];
    for process in [0, 1] {
        finish(&mut case.process(process, &hosts, None)).failed(1, &["192.0.2.7:2101", "hushflow key"]);
    }
    finish(&mut case.process(0, &case.hosts, Some(Path::new("/no/such/key")))).failed(1, &["/no/such/key"]);
}

#[test]
fn a_key_file_is_created_once_for_its_owner() {
    let lab = Lab::new();
    let path = lab.path("cluster.key");
    let made = finish(hushflow(["key"]).arg(&path)).succeeded();
    assert!(made.err.contains("--key") && made.out.is_empty(), "{}", made.err);
    let text = std::fs::read_to_string(&path).expect("a key");
    assert!(!made.err.contains(text.trim().split(':').nth(1).expect("digits")), "the key is not shown");
    finish(hushflow(["key"]).arg(&path)).failed(1, &["never overwritten"]);
    assert_eq!(std::fs::read_to_string(&path).expect("a key"), text);
    let token = || finish(hushflow(["key", "--token"]).arg(&path));
    let shown = token().succeeded().out;
    assert!(shown.trim().len() == 64 && !text.contains(shown.trim()));
    let json = finish(hushflow(["key", "--token", "--json"]).arg(&path)).succeeded().json();
    assert_eq!(json[0]["token"], shown.trim());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    token().failed(1, &["0644", "chmod 600"]);
}
