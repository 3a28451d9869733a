//! `hushflow serve`: followers in a separate process. They deliver every epoch once, and their
//! failures do not affect a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{
    Lab, Random, Stream, answer, await_until, finish, hushflow, run, send, served, stop, tail, wait,
};

const STREAM: Stream = Stream { rows: 4000, epochs: 40 };

/// A lab with two pipelines: one only publishes, the other also writes its releases to a file.
fn case() -> (Lab, [PathBuf; 2], PathBuf) {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let view = "[[views]]\nname = 'so far'\nworkload = 'prefix'\n";
    let sink = "[[sinks]]\npath = 'out/releases.ndjson'\n";
    let alone = lab.write("alone.toml", STREAM.pipeline("data.csv", view));
    let followed = lab.write("followed.toml", STREAM.pipeline("data.csv", &format!("{view}{sink}")));
    let state = lab.path("state");
    (lab, [alone, followed], state)
}

fn serve(source: &Path, arguments: &[&str]) -> Command {
    let mut command = hushflow(["serve".as_ref(), source.as_os_str()]);
    command.args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn a_killed_follower_does_not_affect_the_run_and_has_every_epoch_once() {
    let (lab, [alone, followed], state) = case();
    let at = ["--state", state.to_str().expect("UTF-8")];
    let mut random = Random(11);
    // The follower waits for a run that has not begun.
    let waiting = serve(&followed, &at).spawn().expect("it starts");
    let running = run(&alone, &state, 1).spawn().expect("the run starts");
    let mut follower = waiting;
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(random.below(300)));
        let _ = follower.kill();
        wait(follower);
        follower = serve(&followed, &at).spawn().expect("it starts");
    }
    wait(running).succeeded();
    wait(follower).succeeded();
    let shown = finish(&mut tail(&state, &[])).succeeded();
    let written = fs::read_to_string(lab.path("out/releases.ndjson")).expect("the sink's file");
    assert_eq!(written.lines().count(), 40 * 7);
    assert!(shown.json().iter().map(ToString::to_string).eq(written.lines().map(String::from)));
    // Everything is already delivered, so the new follower ends.
    finish(&mut serve(&followed, &at)).succeeded();
    assert!(fs::read_to_string(lab.path("out/releases.ndjson")).is_ok_and(|text| text == written));
}

#[test]
fn only_one_of_two_followers_writes_the_same_files() {
    for rotate in ["", "rotate = '7 epochs'\n"] {
        let (lab, [alone, followed], state) = case();
        let text = fs::read_to_string(&followed).expect("the pipeline file") + rotate;
        fs::write(&followed, text).expect("the pipeline file");
        finish(&mut run(&alone, &state, 1)).succeeded();
        let at = ["--state", state.to_str().expect("UTF-8")];
        let both = [(); 2].map(|()| serve(&followed, &at).stderr(Stdio::piped()).spawn().expect("it starts"));
        // A follower may give up when it sees that the other one is writing.
        let ended = both.map(|child| child.wait_with_output().expect("it ends"));
        assert!(ended.iter().any(|ended| ended.status.success()), "{ended:?}");
        finish(&mut serve(&followed, &at)).succeeded();
        let folder = fs::read_dir(lab.path("out")).expect("the sink's folder");
        let text = |entry: std::io::Result<fs::DirEntry>| fs::read_to_string(entry.expect("an entry").path());
        let written: Vec<String> = folder.map(|entry| text(entry).expect("a file")).collect();
        assert_eq!(written.concat().lines().count(), 40 * 7, "{rotate}");
    }
}

/// A service may show the directory before the run that creates it. Until then it is alive, not
/// ready, and says so.
#[test]
fn a_directory_is_shown_as_a_page() {
    let (_lab, [alone, _], state) = case();
    let start = || {
        let mut child =
            serve(&state, &["--web", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().expect("it starts");
        let (address, lines) = served(&mut child);
        (child, address, lines)
    };
    let ask = |address: &str, path: &str| {
        answer(send(address, &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")))
    };
    let (child, address, _lines) = start();
    for (path, status, part) in [
        ("/healthz", "200", "alive"),
        ("/readyz", "503", "no release yet: no run has created the log"),
        ("/newest", "200", "\"epoch\":null"),
        ("/", "200", "No release yet"),
        ("/about", "503", "no release yet"),
        ("/nowhere", "404", "go to /"),
    ] {
        let (head, body) = ask(&address, path);
        assert!(head.contains(status) && body.contains(part), "{path}: {head}\n{body}");
    }
    finish(&mut run(&alone, &state, 1)).succeeded();
    await_until("it is ready", || ask(&address, "/readyz").0.contains("200"));
    let (head, about) = ask(&address, "/about");
    assert!(head.starts_with("HTTP/1.1 200") && about.contains("\"horizon\":40"), "{head}\n{about}");
    stop(&child);
    wait(child).succeeded();
    // A stop ends one that still waits.
    fs::remove_dir_all(&state).expect("a directory");
    let (child, ..) = start();
    stop(&child);
    wait(child).succeeded();
}

#[test]
fn directories_that_cannot_be_served_are_refused() {
    let (lab, [alone, followed], state) = case();
    finish(&mut run(&alone, &state, 1)).succeeded();
    finish(&mut serve(&followed, &[])).failed(2, &["no public log", "--public DIR"]);
    let other = fs::read_to_string(&followed)
        .expect("the pipeline file")
        .replace("name = 'stream'", "name = 'other'");
    let other = lab.write("other.toml", other);
    let at = ["--state", state.to_str().expect("UTF-8")];
    finish(&mut serve(&other, &at)).failed(2, &["has other parameters"]);
    finish(&mut serve(&state, &at)).failed(2, &["but the argument is a directory"]);
}

/// SIGTERM ends a page in good order, before and after there is a log.
#[test]
fn a_page_of_tail_ends_cleanly_at_sigterm() {
    let lab = Lab::new();
    let stream = Stream { rows: 400, epochs: 4 };
    lab.write("data.csv", stream.csv());
    let state = lab.path("state");
    for has_log in [false, true] {
        if has_log {
            finish(&mut run(&lab.write("p.toml", stream.pipeline("data.csv", "")), &state, 1)).succeeded();
        }
        let mut page = hushflow(["tail", "--web", "127.0.0.1:0"]).arg(&state).spawn().unwrap();
        let (_address, lines) = served(&mut page);
        std::thread::spawn(move || lines.for_each(drop));
        stop(&page);
        assert_eq!(page.wait().unwrap().code(), Some(0), "with a log: {has_log}");
    }
}

#[test]
fn a_table_of_data_is_not_taken_for_a_pipeline_file() {
    let lab = Lab::new();
    let data = lab.write("in.csv", Stream { rows: 400, epochs: 4 }.csv());
    for command in ["serve", "check", "run"] {
        let ended = finish(hushflow([command]).arg(&data));
        assert_eq!(ended.err.matches("in.csv:").count(), 1, "{}", ended.err);
        ended.failed(2, &["in.csv:1:", "no line is TOML: name a pipeline file"]);
    }
}
