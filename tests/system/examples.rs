//! Runs the commands of `examples/README.md` as printed there.

use std::io::{Write, stderr};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Lab, await_until, expected_sums, finish, hushflow, sums, wait};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A copy of the examples with separate state directories and free ports.
struct Showroom {
    lab: Lab,
    ports: Vec<(&'static str, String)>,
}

impl Showroom {
    fn new() -> Self {
        let lab = Lab::new();
        std::fs::create_dir(lab.path("examples")).expect("a directory");
        let free = ["7000", "2101", "2102"].map(|port| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            (port, listener)
        });
        let address =
            |listener: &TcpListener| listener.local_addr().expect("a bound port").port().to_string();
        let ports = free.iter().map(|(port, listener)| (*port, address(listener))).collect();
        let showroom = Showroom { lab, ports };
        for entry in std::fs::read_dir(Path::new(ROOT).join("examples")).expect("the examples") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                // The last section of each is [state].
                let text = std::fs::read_to_string(&path).expect("an example") + "\nkeep = 'all'\n";
                showroom.lab.write(&format!("examples/{name}"), showroom.free(&text));
            }
        }
        let data = Path::new(ROOT).join("examples/data");
        std::os::unix::fs::symlink(data, showroom.path("data")).expect("a link to the data");
        showroom
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lab.path("examples").join(name)
    }

    /// Replaces the printed ports by free ones.
    fn free(&self, text: &str) -> String {
        self.ports.iter().fold(text.into(), |text, (printed, free)| {
            text.replace(&format!("127.0.0.1:{printed}"), &format!("127.0.0.1:{free}"))
        })
    }

    /// Makes a command of a printed line; `None` if its program has not been built.
    fn command(&self, line: &str) -> Option<Command> {
        let line = self.free(line);
        let mut words = line.split_whitespace();
        let mut command = match words.next() {
            Some("hushflow") => hushflow(words),
            Some("cargo") => {
                let produce =
                    Path::new(env!("CARGO_BIN_EXE_hushflow")).with_file_name("examples").join("produce");
                let mut command = Command::new(produce.is_file().then_some(produce)?);
                command.args(words.skip_while(|&word| word != "--").skip(1));
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                command
            }
            other => panic!("{other:?} is not a program of the page"),
        };
        command.current_dir(self.lab.path("."));
        Some(command)
    }

    /// Starts the only command of a block.
    fn start(&self, block: &[String]) -> Option<Child> {
        let [line] = block else { panic!("one command for a terminal: {block:?}") };
        Some(self.command(line)?.spawn().expect("it starts"))
    }

    /// Runs all commands of a block in order; returns the output of the last.
    fn run(&self, block: &[String]) -> String {
        let out =
            |line: &String| finish(&mut self.command(line).expect("a command of hushflow")).succeeded().out;
        block.iter().map(out).collect::<Vec<String>>().pop().expect("a command")
    }
}

/// Returns the command blocks of a section of the page.
fn blocks(title: &str) -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(Path::new(ROOT).join("examples/README.md")).expect("the page");
    let section = page.split("\n## ").find(|section| section.starts_with(title)).expect("the section");
    let blocks = section.split("```sh\n").skip(1).map(|block| block.split("```").next().expect("its end"));
    blocks.map(|block| block.lines().map(String::from).collect()).collect()
}

#[test]
fn flights_with_whole_aircraft_protected() {
    let (showroom, blocks) = (Showroom::new(), blocks("Flights for each airport"));
    let [block] = &blocks[..] else { panic!("{blocks:?}") };
    let shown = showroom.run(block);
    let last = shown.lines().last().expect("a table");
    assert!(last.trim_start().starts_with("32 ") && last.contains(" all "), "{shown}");
}

#[test]
fn weather_with_corrupt_readings() {
    let (showroom, blocks) = (Showroom::new(), blocks("Weather"));
    let [block] = &blocks[..] else { panic!("{blocks:?}") };
    let shown = showroom.run(block);
    assert!(shown.contains("wind_speed"), "{shown}");
    let lines = showroom.run(&block[1..2]);
    assert_eq!(lines.lines().filter(|line| line.contains(" EWR ")).count(), 5, "{lines}");
    assert!(sums(&showroom.path("weather-state")).len() == 364);
}

#[test]
#[ignore = "slow"]
fn a_stream_that_another_process_produces() {
    let (showroom, blocks) = (Showroom::new(), blocks("A stream"));
    let [listens, produces] = &blocks[..] else { panic!("{blocks:?}") };
    if showroom.command(&produces[0]).is_none() {
        let _ = writeln!(stderr(), "skipped: `cargo build --example produce` has not built the producer");
        return;
    }
    let listens = showroom.start(listens).expect("hushflow is there");
    let produces = showroom.start(produces).expect("the producer is there");
    wait(produces).succeeded();
    wait(listens).succeeded();
    let expected = expected_sums(&showroom.path("flights.toml"));
    assert!(sums(&showroom.path("socket-state")) == expected, "as the file has them");
}

#[test]
fn two_processes() {
    let (showroom, blocks) = (Showroom::new(), blocks("Two processes"));
    let [first, second, tail] = &blocks[..] else { panic!("{blocks:?}") };
    let [first, second] = [first, second].map(|block| showroom.start(block).expect("hushflow is there"));
    wait(first).succeeded();
    wait(second).succeeded();
    await_until("the log", || showroom.path("flights-state").is_dir());
    assert!(sums(&showroom.path("flights-state")) == expected_sums(&showroom.path("flights.toml")));
    let shown = showroom.run(tail);
    assert_eq!(shown.lines().filter(|line| line.contains(" JFK ")).count(), 8, "{shown}");
}
