//! Crashes: after any kill, every epoch is published once and never changes, and the sums equal
//! those of an undisturbed run. `kills.rs` repeats this with many kills.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use crate::harness::{
    Lab, PRIVATE_LOG, Random, Stream, await_until, cut, expected_sums, finish, hushflow, last_frame, logs,
    releases, run, run_as_two, sums, tail, wait,
};
use hushflow::state::ReleaseFrame;

/// Releases seen so far in a public log. Noise is fresh in every run, so drawing an epoch twice is
/// detected.
struct PublishedReleases {
    state: PathBuf,
    seen: Vec<ReleaseFrame>,
}

impl PublishedReleases {
    fn new(state: &Path) -> Self {
        PublishedReleases { state: state.into(), seen: Vec::new() }
    }

    /// Reads the log again and checks that earlier releases are unchanged. Returns the number of
    /// epochs.
    fn observe(&mut self) -> usize {
        let now = releases(&self.state);
        assert!(now.starts_with(&self.seen), "an epoch that had been published is another now");
        self.seen = now;
        self.seen.len()
    }
}

/// Kills a run at random: in one case of four soon after its start, otherwise after it has
/// published some more bytes, fewer than `most`.
fn kill_at_random(child: &mut Child, state: &Path, random: &mut Random, most: u64) {
    let published = || state.join("public.log").metadata().map_or(0, |log| log.len());
    if random.below(4) > 0 {
        let enough = published() + 1 + random.below(most);
        while published() < enough && child.try_wait().expect("a child can be asked").is_none() {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    std::thread::sleep(Duration::from_micros(random.below(20_000)));
    child.kill().expect("a child can be killed");
}

#[test]
fn a_process_whose_peer_is_killed_ends_and_the_run_can_be_resumed() {
    let lab = Lab::new();
    let stream = Stream { rows: 60_000, epochs: 1000 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let state = lab.path("state");
    let mut witness = PublishedReleases::new(&state);
    for victim in [0, 1] {
        let before = witness.observe();
        let mut children =
            run_as_two(&pipeline, &state, 2).map(|mut process| process.spawn().expect("it starts"));
        await_until("the cluster publishes", || releases(&state).len() > before);
        children[victim].kill().expect("a child can be killed");
        let [first, second] = children.map(wait);
        let survivor = [second, first].into_iter().nth(victim).expect("one of two");
        // A process that starts may publish the earlier commit before the run begins.
        survivor.failed(1, &["has ended"]);
        assert!(witness.observe() < stream.epochs as usize, "the run was killed half-way");
    }
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(witness.observe(), stream.epochs as usize);
    assert!(sums(&state) == expected_sums(&pipeline));
}

/// Writes all `rows`, or stops when the reader has gone away.
fn feed(mut input: ChildStdin, rows: &str) {
    for part in rows.as_bytes().chunks(1 << 13) {
        if input.write_all(part).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Pipes `rows` into a run and kills it at a random moment if `random` is given. Returns whether it
/// finished.
fn pipe(pipeline: &Path, state: &Path, rows: &str, random: Option<&mut Random>) -> bool {
    let mut child = run(pipeline, state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    let input = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(|| feed(input, rows));
        if let Some(random) = random {
            kill_at_random(&mut child, state, random, 40_000);
        }
        wait(child).code == Some(0)
    })
}

#[test]
fn a_source_piped_in_again_after_kills_is_not_counted_twice() {
    let lab = Lab::new();
    let stream = Stream { rows: 60_000, epochs: 400 };
    let rows = stream.csv();
    lab.write("data.csv", &rows);
    let pipeline = lab.write("pipeline.toml", stream.pipeline("-", ""));
    let state = lab.path("state");
    let mut witness = PublishedReleases::new(&state);
    let mut random = Random(2);
    let mut partial = 0;
    for _ in 0..6 {
        let before = witness.seen.len();
        if pipe(&pipeline, &state, &rows, Some(&mut random)) {
            break;
        }
        partial += usize::from(witness.observe() > before);
    }
    assert!(partial > 1, "the stream is long enough to be killed twice");
    assert!(pipe(&pipeline, &state, &rows, None));
    assert_eq!(witness.observe(), stream.epochs as usize);
    let undisturbed = lab.write("file.toml", stream.pipeline("data.csv", ""));
    assert!(sums(&state) == expected_sums(&undisturbed), "rows were lost or counted twice");
}

#[test]
fn a_torn_last_frame_is_cut_off_and_its_epoch_published_anew() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let expected = expected_sums(&pipeline);
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let mut random = Random(3);
    for workers in 1..=12 {
        let (private, public) = (state.join(PRIVATE_LOG), state.join("public.log"));
        let torn = last_frame(&private);
        cut(&public, last_frame(&public).start);
        cut(&private, torn.start + random.below(torn.end - torn.start));
        let mut witness = PublishedReleases::new(&state);
        assert_eq!(witness.observe(), 19);
        finish(&mut run(&pipeline, &state, workers)).succeeded();
        assert_eq!(witness.observe(), 20);
        assert!(sums(&state) == expected);
    }
    // The public log is ahead of the private one. Its epoch is public and must not be drawn again.
    let torn = last_frame(&state.join(PRIVATE_LOG));
    cut(&state.join(PRIVATE_LOG), torn.end - 1);
    finish(&mut run(&pipeline, &state, 1)).failed(1, &[PRIVATE_LOG, "cut or rolled back"]);
    assert_eq!(releases(&state).len(), 20);
}

#[test]
fn a_locked_directory_is_refused_at_once() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    let pipeline = lab.write("pipeline.toml", stream.pipeline("-", ""));
    let state = lab.path("state");
    let mut first = run(&pipeline, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    await_until("the first run holds the directory", || state.join("public.log").exists());
    let name = state.display().to_string();
    finish(&mut run(&pipeline, &state, 1)).failed(1, &[&name, "another run holds this state directory"]);
    drop(first.stdin.take());
    assert_eq!(wait(first).code, Some(1), "an input without a header");
}

#[test]
fn other_public_parameters_are_refused_and_views_are_not() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    lab.write("data.csv", stream.csv());
    let text = stream.pipeline("data.csv", "");
    let state = lab.path("state");
    finish(&mut run(&lab.write("pipeline.toml", &text), &state, 1)).succeeded();
    let before = releases(&state);
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        finish(&mut run(&lab.write("pipeline.toml", text.replacen(from, to, 1)), &state, 1))
    };
    for (from, to) in [
        ("epsilon = 1", "epsilon = 2"),
        ("delta = 1e-6", "delta = 1e-7"),
        ("upper = 10", "upper = 11"),
        ("horizon = 20", "horizon = 21"),
        ("clip_norm = 1.5", "clip_norm = 1"),
        ("'k6'", "'k7'"),
        ("90s", "91s"),
        ("'square-root'", "'identity'"),
        ("[privacy]", "[simulation]\nseed = 1\n[privacy]"),
    ] {
        let name = state.display().to_string();
        changed(from, to).failed(1, &[&name, "these parameters differ", "use another state directory"]);
    }
    let view = "[[views]]\nname = 'v'\nworkload = 'window:3'\n[release]";
    let ended = changed("[release]", view).succeeded();
    assert!(ended.err.contains("Nothing new: 20 epochs"), "{}", ended.err);
    assert!(releases(&state) == before);
}

/// By default, exact sums are deleted once no restart needs them. The run still continues after any
/// kill.
#[test]
fn only_sums_that_no_start_needs_are_erased() {
    let lab = Lab::new();
    let stream = Stream { rows: 40_000, epochs: 4000 };
    lab.write("data.csv", stream.csv());
    let text = stream.pipeline("data.csv", "").replacen("keep = 'all'", "keep = '0 epochs'", 1);
    let pipeline = lab.write("pipeline.toml", text);
    let state = lab.path("state");
    let mut witness = PublishedReleases::new(&state);
    let mut random = Random(4);
    loop {
        let mut child = run(&pipeline, &state, 2).spawn().expect("the run starts");
        kill_at_random(&mut child, &state, &mut random, 400_000);
        let ended = wait(child).code;
        if witness.observe() == stream.epochs as usize && ended == Some(0) {
            break;
        }
        finish(hushflow(["verify"]).arg(&state)).succeeded();
    }
    let kept = logs(&state);
    assert!((3..=4).contains(&kept.len()), "three segments at most, and the releases: {kept:?}");
    assert!(!kept.contains(&PRIVATE_LOG.into()), "{kept:?}");
    let all: Vec<_> = finish(&mut tail(&state, &["--key", "k0"])).succeeded().json();
    assert_eq!(all.len(), stream.epochs as usize, "every release is there for ever");
}

/// A directory restored from a copy draws published epochs again. With an anchor, the run detects
/// this. Without one, a reader of the releases detects it.
#[test]
fn a_restored_directory_is_refused_by_its_anchor_and_shown_by_its_chain() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    let csv = stream.csv();
    let begin: String = csv.lines().take(1000).map(|line| format!("{line}\n")).collect();
    let anchor = lab.path("anchor");
    std::fs::create_dir(&anchor).expect("a directory for the anchor");
    let text = stream.pipeline("data.csv", "");
    let plain = lab.write("plain.toml", &text);
    let anchored = text.replacen("keep = 'all'", "keep = 'all'\nanchor = 'anchor'", 1);
    let anchored = lab.write("anchored.toml", anchored);
    let (state, copy) = (lab.path("state"), lab.path("copy"));
    let replace = |from: &Path, to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.expect("cp runs").success());
    };
    lab.write("data.csv", begin);
    finish(&mut run(&anchored, &state, 1)).succeeded();
    replace(&state, &copy);
    lab.write("data.csv", csv);
    finish(&mut run(&anchored, &state, 1)).succeeded();
    let verified = |state: &Path| {
        let mut command = hushflow(["verify", "--json", "--anchor"]);
        finish(command.arg(&anchor).arg(state))
    };
    verified(&state).succeeded();
    let stamps = |state: &Path| {
        let lines = finish(&mut tail(state, &["--key", "k0"])).succeeded().json();
        lines.iter().map(|line| (line["generation"].clone(), line["chain"].clone())).collect::<Vec<_>>()
    };
    let seen = stamps(&state);
    replace(&copy, &state);
    let message = ["has seen run 2, epoch 20", "restored from an older copy", "restore the newest"];
    finish(&mut run(&anchored, &state, 1)).failed(1, &message);
    verified(&state).failed(1, &message);
    finish(&mut run(&plain, &state, 1)).succeeded();
    let message = ["not the one that its anchor", "was continued separately"];
    finish(&mut run(&anchored, &state, 1)).failed(1, &message);
    let redrawn = stamps(&state);
    let common = seen.iter().zip(&redrawn).take_while(|(seen, redrawn)| seen == redrawn).count();
    assert_eq!((seen.len(), redrawn.len()), (20, 20));
    assert!((1..20).contains(&common), "{common} epochs in common");
    assert!(seen.iter().zip(&redrawn).skip(common).all(|(seen, redrawn)| seen.1 != redrawn.1));
}

/// A copy has the identity of its original, so both have the same entry in a shared ledger. With
/// the anchors in the directory of the ledger, the second of two runs is refused.
#[test]
fn of_two_copies_that_share_a_ledger_entry_one_is_refused() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    let csv = stream.csv();
    let text = stream.pipeline("data.csv", "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\n");
    let text = text.replacen("keep = 'all'", "keep = 'all'\nanchor = 'shared'", 1);
    let pipeline = lab.write("pipeline.toml", text);
    // Creates the ledger's directory before the first run uses it as an anchor directory.
    finish(hushflow(["ledger", "--budget", "2,1e-6"]).arg(lab.path("shared"))).succeeded();
    lab.write("data.csv", csv.lines().take(1000).map(|line| format!("{line}\n")).collect::<String>());
    let (state, copy) = (lab.path("state"), lab.path("copy"));
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let copied = std::process::Command::new("cp").arg("-a").args([&state, &copy]).status();
    assert!(copied.expect("cp runs").success());
    lab.write("data.csv", csv);
    finish(&mut run(&pipeline, &copy, 1)).succeeded();
    finish(&mut run(&pipeline, &state, 1))
        .failed(1, &["has seen run 2, epoch 20", "restored from an older copy"]);
    let ledger = finish(hushflow(["ledger", "--json"]).arg(lab.path("shared"))).succeeded().json();
    assert_eq!(ledger[0]["entries"].as_array().map(Vec::len), Some(1));
}
