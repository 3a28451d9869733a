//! Whole runs through the library: their commits, and that they end.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use crossbeam::channel::unbounded;
use hushflow_operators::{Entity, EntityHistory, shard_owner};
use zeroize::Zeroizing;

use super::*;
use crate::key::SharedKey;
use crate::pipeline::Preflight;
use crate::state::PublicReader;

/// A pipeline over `rows.csv` in `directory`, with one column `x` between −1 and 1 and seeded
/// noise.
fn pipeline(directory: &Path, rows: &str, rest: &str) -> Pipeline {
    std::fs::write(directory.join("rows.csv"), rows).unwrap();
    let text = format!(
        "name = 'n'\nsource.path = 'rows.csv'\ncolumns = [{{ name = 'x', lower = -1, upper = 1 }}]
        release.strategy = 'identity'\nsimulation.seed = 1\n{rest}"
    );
    Pipeline::parse(&text, &directory.join("p.toml")).unwrap()
}

fn run_pipeline(pipeline: &Pipeline, options: &RunOptions) -> Result<(), String> {
    let publication = Publication::of_pipeline(pipeline, &options.state, &mut |_| ()).unwrap();
    run(pipeline, &publication, options, |_| ()).map(drop).map_err(|error| error.to_string())
}

/// Runs to the end and returns the releases in the log.
fn run_to_the_end(directory: &Path, pipeline: Pipeline) -> Vec<Vec<i128>> {
    let state = directory.join("state");
    let options = RunOptions::new(2, state.clone());
    let (done, ended) = unbounded();
    std::thread::spawn(move || {
        let _ = done.send(run_pipeline(&pipeline, &options));
    });
    let outcome = ended.recv_timeout(Duration::from_secs(30)).expect("the run ends");
    outcome.unwrap();
    let mut reader = PublicReader::open(&state).unwrap();
    std::iter::from_fn(|| reader.next_frame().unwrap()).map(|release| release.values).collect()
}

/// Exact counts must not depend on anything that replacing a record in place can change.
#[test]
fn public_counts_do_not_reveal_unusable_values() {
    let counts = |value: &str| {
        let directory = tempfile::tempdir().unwrap();
        let rest = "privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }\n\
                    epochs = { records = 2, horizon = 2 }";
        let pipeline = pipeline(directory.path(), &format!("x\n0.5\n{value}\n0.5\n0.5\n"), rest);
        run_to_the_end(directory.path(), pipeline).iter().map(|release| release[0]).collect::<Vec<_>>()
    };
    for value in ["0.25", "1e9", "none", "NaN", "1e999", "\"\""] {
        assert_eq!(counts(value), [2 << 40, 2 << 40], "{value}");
    }
}

#[test]
fn rows_that_a_file_gains_are_counted_by_the_next_run() {
    let directory = tempfile::tempdir().unwrap();
    let counts = |rows: &str| {
        let rest = "privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }\n\
                    epochs = { records = 2, horizon = 9 }";
        let pipeline = pipeline(directory.path(), rows, rest);
        let releases = run_to_the_end(directory.path(), pipeline);
        releases.iter().map(|release| release[0] >> 40).collect::<Vec<_>>()
    };
    assert_eq!(counts("x\n1\n1\n1\n"), [2, 1]);
    assert_eq!(counts("x\n1\n1\n1\n"), [2, 1]);
    // The end of the input closed the second epoch, so its other row joins the third.
    assert_eq!(counts("x\n1\n1\n1\n1\n1\n"), [2, 1, 2]);
}

/// A header that says `private` must hold for the shards of all processes.
#[test]
fn a_process_with_seeded_noise_is_refused_by_one_without() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let hosts = listeners.map(|listener| listener.local_addr().unwrap().to_string()).to_vec();
    let key = SharedKey::create(&tempfile::tempdir().unwrap().path().join("key")).unwrap();
    let sources = [NoiseSource::System, NoiseSource::Seeded(7)];
    let processes = sources.into_iter().enumerate().map(|(process, noise)| {
        let (hosts, key) = (hosts.clone(), Some(key.clone()));
        std::thread::spawn(move || {
            let directory = tempfile::tempdir().unwrap();
            let rest = format!("{PRIVACY}\nepochs = {{ records = 2, horizon = 2 }}");
            let pipeline = Pipeline { noise, ..pipeline(directory.path(), "x\n0.5\n", &rest) };
            let on_fault = |reason: &str| panic!("{reason}");
            let cluster = Cluster { process, hosts, key, timeout: Duration::from_secs(10), on_fault };
            let options =
                RunOptions { cluster: Some(cluster), ..RunOptions::new(2, directory.path().join("state")) };
            run_pipeline(&pipeline, &options).unwrap_err()
        })
    });
    for process in processes.collect::<Vec<_>>() {
        let error = process.join().unwrap();
        assert!(error.contains("runs another pipeline"), "{error}");
    }
}

#[test]
fn a_worker_receives_only_the_state_it_owns() {
    let history = EntityHistory { participations: 1, last: 3 };
    let states = (0..64).map(|shard| (shard, Zeroizing::new(vec![shard as u8]))).collect();
    let histories = (0..500).map(|at| (Entity((at << 64) | (at * at)), history)).collect();
    let start = RunStart { states, histories, ..RunStart::after(3) };
    for workers in [1, 2, 5, 64, 100] {
        let parts: Vec<RunStart> = (0..workers).map(|worker| start.of_worker(worker, workers)).collect();
        for (worker, part) in parts.iter().enumerate() {
            assert_eq!(part.first_epoch, 4);
            assert!(part.states.keys().all(|&shard| shard_owner(shard, workers) == worker));
            assert!(part.histories.iter().all(|(entity, _)| entity.owner(workers) == worker));
        }
        assert_eq!(parts.iter().map(|part| part.states.len()).sum::<usize>(), 64);
        assert_eq!(parts.iter().map(|part| part.histories.len()).sum::<usize>(), 500);
    }
}

const PRIVACY: &str = "privacy = { epsilon = 1, delta = 1e-6 }";

#[test]
fn any_number_of_epochs_may_close_at_once() {
    let check = |rows: &str, epochs: &str, expected: usize| {
        let directory = tempfile::tempdir().unwrap();
        let mut pipeline = pipeline(directory.path(), rows, &format!("{PRIVACY}\nepochs = {epochs}"));
        // By default a run stops at such a clock.
        (pipeline.sources[0].largest_jump, pipeline.preflight) = (None, Preflight::Off);
        assert_eq!(run_to_the_end(directory.path(), pipeline).len(), expected);
    };
    let time = "time = 't', start = '1970-01-01', length = '1s', horizon = 1000";
    check("x,t\n0.5,1970-01-01T00:00:02Z\n", &format!("{{ {time}, clock = 'end-of-input' }}"), 1000);
    let rows = "x,t,a\n0.5,1970-01-01T00:00:02Z,1970-01-01T00:00:02Z\n\
                0.5,1970-01-01T00:15:02Z,1970-01-01T00:15:02Z\n";
    check(rows, &format!("{{ {time}, arrival = 'a' }}"), 903);
}

/// No state directory is made, so nothing is charged.
#[test]
fn a_run_whose_other_processes_stay_away_opens_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let rest = "privacy = { epsilon = 1, delta = 1e-6 }\nepochs = { records = 2, horizon = 2 }";
    let pipeline = pipeline(directory.path(), "x\n0.5\n", rest);
    let free = || TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts = [free(), free()].map(|port| port.local_addr().unwrap().to_string()).to_vec();
    let state = directory.path().join("state");
    let cluster = Cluster {
        process: 0,
        hosts,
        key: None,
        timeout: Duration::from_millis(200),
        on_fault: |reason| panic!("{reason}"),
    };
    let options = RunOptions { cluster: Some(cluster), ..RunOptions::new(1, &state) };
    let publication = Publication::of_pipeline(&pipeline, &state, &mut |_| ()).unwrap();
    let ended = run(&pipeline, &publication, &options, |_| ()).map(|_| ());
    assert!(matches!(ended, Err(RunError::Cluster(ClusterError::Missing { .. }))), "{ended:?}");
    assert!(!state.exists(), "nothing was opened");
}
