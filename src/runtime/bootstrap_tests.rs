//! Tests which processes the cluster bootstrap connects, and which it refuses.

use super::*;
use std::iter;
use std::thread::JoinHandle;

fn free_addresses(number: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..number).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

fn key() -> SharedKey {
    SharedKey::create(&tempfile::tempdir().unwrap().path().join("key")).unwrap()
}

fn cluster(process: usize, hosts: &[String], key: Option<&SharedKey>, seconds: u64) -> Cluster {
    let (hosts, key, timeout) = (hosts.to_vec(), key.cloned(), Duration::from_secs(seconds));
    Cluster { process, hosts, key, timeout, on_fault: |reason| panic!("{reason}") }
}

/// A process of the cluster, simulated by a thread.
struct ProcessThread(JoinHandle<Result<ProcessLinks, String>>);

fn start(cluster: Cluster, workers: usize, pipeline: &'static [u8]) -> ProcessThread {
    ProcessThread(thread::spawn(move || {
        connect_processes(&cluster, workers, pipeline, &Control::new()).map_err(|error| error.to_string())
    }))
}

impl ProcessThread {
    fn error(self) -> String {
        self.0.join().unwrap().map(|_| ()).unwrap_err()
    }
}

/// Returns the number of links of each process. Each process keeps its links until all processes
/// are connected.
fn link_counts(processes: impl IntoIterator<Item = ProcessThread>) -> Vec<Result<usize, String>> {
    let ended: Vec<_> = processes.into_iter().map(|process| process.0.join().unwrap()).collect();
    ended.into_iter().map(|links| Ok(links?.iter().flatten().count())).collect()
}

fn connect_all(
    key: Option<&SharedKey>,
    pipelines: &[&'static [u8]],
    workers: &[usize],
) -> Vec<Result<usize, String>> {
    let hosts = free_addresses(pipelines.len());
    let threads: Vec<_> = (0..hosts.len())
        .map(|process| start(cluster(process, &hosts, key, 2), workers[process], pipelines[process]))
        .collect();
    link_counts(threads)
}

#[test]
fn processes_connect_with_the_same_key_or_no_key() {
    for key in [None, Some(&key())] {
        assert_eq!(connect_all(key, &[b"p".as_slice(); 3], &[2; 3]), [Ok(2), Ok(2), Ok(2)]);
    }
}

#[test]
fn another_pipeline_or_worker_count_is_refused() {
    for (pipelines, workers, expected) in [
        ([b"p".as_slice(), b"q"], [1, 1], "runs another pipeline"),
        ([b"p", b"p"], [1, 2], "has another number of workers"),
    ] {
        for key in [None, Some(&key())] {
            let results = connect_all(key, &pipelines, &workers);
            assert!(
                results.iter().all(|result| result.as_ref().is_err_and(|error| error.contains(expected))),
                "{results:?}"
            );
        }
    }
}

#[test]
fn a_process_with_another_key_or_none_is_dropped() {
    let (ours, theirs) = (key(), key());
    for wrong in [None, Some(&theirs)] {
        let hosts = free_addresses(2);
        let listening = start(cluster(0, &hosts, Some(&ours), 2), 1, b"p");
        let connecting = start(cluster(1, &hosts, wrong, 1), 1, b"p");
        let error = connecting.error();
        assert!(error.contains("same key"), "{error}");
        let error = listening.error();
        assert!(error.contains("callers were dropped"), "{error}");
    }
}

/// Connects to process 0 as process 2 of three. Retries until process 0 listens.
fn connect_as_process_2(hosts: &[String], key: &SharedKey) -> Result<EncryptedLink<TcpStream>, ClusterError> {
    let pipeline = Sha256::digest(b"p").into();
    let own = Greeting { process: 2, to: 0, processes: 3, workers: 1, pipeline };
    loop {
        match attempt(&hosts[0], Some(key), &own) {
            Ok(result) => return result,
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[test]
fn a_process_number_is_taken_once_and_its_end_is_noticed() {
    let (hosts, key) = (free_addresses(3), key());
    let listening = start(cluster(0, &hosts, Some(&key), 600), 1, b"p");
    let link = connect_as_process_2(&hosts, &key).unwrap();
    for _ in 0..3 {
        let second = connect_as_process_2(&hosts, &key).map(|_| ());
        assert!(matches!(second, Err(ClusterError::Taken { process: 0 })), "{second:?}");
    }
    assert!(!listening.0.is_finished(), "it waits for process 1");
    drop(link);
    let error = listening.error();
    assert!(error.contains("process 2 has ended"), "{error}");
}

#[test]
fn addresses_that_others_can_reach_need_a_key() {
    for address in ["0.0.0.0:0", "192.0.2.1:2101", "[::]:2101"] {
        let hosts = [address.to_owned(), "127.0.0.1:2102".into()];
        for process in [0, 1] {
            let error = start(cluster(process, &hosts, None, 600), 1, b"p").error();
            assert!(error.contains("hushflow key") && error.contains(address), "{error}");
        }
    }
}

#[test]
fn absent_processes_are_named() {
    let hosts = free_addresses(2);
    let connect = |process| start(cluster(process, &hosts, None, 1), 1, b"p").error();
    let error = connect(1);
    assert!(error.contains("process 0 was not reached"), "{error}");
    let error = connect(0);
    assert!(error.contains("1 of the processes with higher numbers did not connect"), "{error}");
}

#[test]
fn a_process_number_beyond_the_hosts_is_refused() {
    let error = start(cluster(2, &free_addresses(2), None, 1), 1, b"p").error();
    assert!(error.contains("process 2 of 2"), "{error}");
}

#[test]
fn unknown_connections_do_not_delay_the_cluster() {
    for key in [None, Some(&key())] {
        let hosts = free_addresses(2);
        let listening = start(cluster(0, &hosts, key, 60), 1, b"p");
        let connect = || iter::repeat_with(|| TcpStream::connect(&hosts[0])).find_map(Result::ok).unwrap();
        // More silent connections than `MAX_CALLERS`, and some that send bytes of other protocols.
        let silent: Vec<_> = (0..2 * MAX_CALLERS).map(|_| connect()).collect();
        let http = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
        for bytes in [&http[..], b"hushflow, not encrypted", &[0; 24], &[0xff; 1000]] {
            let _ = connect().write_all(bytes);
        }
        let started = Instant::now();
        let connecting = start(cluster(1, &hosts, key, 60), 1, b"p");
        assert_eq!(link_counts([listening, connecting]), [Ok(1), Ok(1)]);
        assert!(started.elapsed() < Duration::from_secs(30), "no process waited for the others");
        drop(silent);
    }
}

#[test]
fn two_processes_cannot_share_an_address() {
    let hosts = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".into(), "127.0.0.1:1".into()];
    let error = start(cluster(0, &hosts, None, 60), 1, b"p").error();
    assert!(error.contains("processes 0 and 2 are both at 127.0.0.1:1"), "{error}");
}

#[test]
fn a_stop_ends_the_wait_for_the_others() {
    let hosts = free_addresses(2);
    let control = Control::new();
    control.stop();
    for process in [0, 1] {
        let cluster = cluster(process, &hosts, None, 600);
        assert!(matches!(connect_processes(&cluster, 1, b"p", &control), Err(ClusterError::Stopped)));
    }
}
