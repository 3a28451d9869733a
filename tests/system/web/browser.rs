//! A headless browser, controlled over two pipes by the protocol of its developer tools.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Lab, await_until};

/// Time limit for one action of the browser.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Flags for no network except the page, no stored data, and a fresh start.
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1100,1400",
    "--remote-debugging-pipe",
];

/// A browser with one open page.
pub(crate) struct Browser {
    child: Child,
    orders: File,
    answers: Receiver<Value>,
    session: Option<String>,
    number: u64,
    /// Errors and warnings of the page.
    pub(crate) complaints: VecDeque<Value>,
    _profile: Lab,
}

/// Returns the installed browser; otherwise the test prints that it is skipped.
fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = paths.find(|path| path.is_file());
    if found.is_none() {
        let _ = writeln!(stderr(), "skipped: no Chromium is installed, so no browser has seen the page");
    }
    found
}

impl Browser {
    /// Opens the page at `url`; `None` without a browser.
    pub(crate) fn open(url: &str) -> Option<Self> {
        let program = installed()?;
        let profile = Lab::new();
        let [orders, answers] = ["orders", "answers"].map(|name| profile.path(name));
        let made = Command::new("mkfifo").args([&orders, &answers]).status().expect("mkfifo runs");
        assert!(made.success(), "two named pipes");
        // The protocol uses descriptors 3 and 4.
        let child = Command::new("sh")
            .args(["-c", r#"in=$1 out=$2; shift 2; exec "$@" 3<"$in" 4>"$out""#, "sh"])
            .args([&orders, &answers, &program])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path("profile").display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let orders = File::options().write(true).open(orders).expect("a pipe to the browser");
        let answers = listen(File::open(answers).expect("a pipe from the browser"));
        let complaints = VecDeque::new();
        let mut browser =
            Browser { child, orders, answers, session: None, number: 0, complaints, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session =
            browser.call("Target.attachToTarget", attach)["sessionId"].as_str().map(String::from);
        browser.call("Log.enable", json!({}));
        browser.call("Runtime.enable", json!({}));
        browser.call("Page.enable", json!({}));
        browser.call("Page.navigate", json!({ "url": url }));
        Some(browser)
    }

    /// Returns the result of a protocol command.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut order = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            order["sessionId"] = session.as_str().into();
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).expect("the browser listens");
        loop {
            let answer = self.answers.recv_timeout(TIMEOUT).expect("the browser answers");
            if answer["id"] == self.number {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            let failed = answer["method"] == "Runtime.exceptionThrown";
            if failed || answer["params"]["entry"]["level"] == "error" {
                self.complaints.push_back(answer["params"].clone());
            }
        }
    }

    /// Returns the value of a script in the page.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let asked = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until a script returns true, once the page has loaded.
    #[track_caller]
    pub(crate) fn await_true(&mut self, script: &str) {
        let begun = format!("typeof about !== 'undefined' && about !== null && ({script})");
        await_until(script, || self.evaluate(&begun) == true);
    }

    /// Navigates to another address of the page, as if a reader pasted it.
    pub(crate) fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Sets the width of the page, and light or dark colours.
    pub(crate) fn show_as(&mut self, width: u32, scheme: &str) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Saves downloads in this directory.
    pub(crate) fn download_to(&mut self, directory: &Path) {
        // The command is for the browser, not for the page.
        let session = self.session.take();
        let order = json!({ "behavior": "allow", "downloadPath": directory });
        self.call("Browser.setDownloadBehavior", order);
        self.session = session;
    }

    /// Presses a named key, such as `ArrowLeft`.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "code": key }));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let _ = self.orders.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Messages end with a zero byte.
fn listen(pipe: File) -> Receiver<Value> {
    let (found, messages) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(pipe).split(0) {
            let Some(message) = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) else {
                return;
            };
            if found.send(message).is_err() {
                return;
            }
        }
    });
    messages
}
