//! Socket sources: `tcp://`, `tcp-listen://`, `unix://`, `unix-listen://`, and their fields.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::connect::{Text, has_port, listed, source_paths};
use crate::document::Section;
use crate::pipeline::{Address, Input, Socket};

/// Fields of a socket besides its path.
pub(super) struct SocketFlags {
    acknowledge: bool,
    expose: bool,
    key: Option<PathBuf>,
}

impl SocketFlags {
    pub(super) fn of(section: &Section<'_>, base: &Path) -> Self {
        SocketFlags {
            acknowledge: section.flag("acknowledge").unwrap_or(false),
            expose: section.flag("expose").unwrap_or(false),
            key: section.text("key").map(|key| base.join(key.value)),
        }
    }
}

/// Reads the socket named by the rest of a path.
pub(super) fn socket(
    path: &Text<'_>,
    scheme: &str,
    rest: &str,
    flags: &SocketFlags,
    base: &Path,
) -> Option<Input> {
    let tcp = |listens| Some((Address::Tcp(rest.into()), listens));
    let unix = |listens| Some((Address::Unix(base.join(rest)), listens));
    let place = match scheme {
        "tcp" => tcp(false),
        "tcp-listen" => tcp(true),
        "unix" => unix(false),
        "unix-listen" => unix(true),
        _ => None,
    };
    let whole = match &place {
        Some((Address::Tcp(address), _)) => has_port(address),
        _ => !rest.is_empty(),
    };
    let Some((address, listens)) = place.filter(|_| whole) else {
        let others = listed(source_paths(), "or");
        path.report(format!(
            "found {:?}, expected {SCHEMES}, {others} (without encryption: use a private network or a tunnel)",
            path.value
        ));
        return None;
    };
    let &SocketFlags { acknowledge, expose, ref key } = flags;
    if let (Address::Tcp(address), true, false) = (&address, listens, expose)
        && !is_loopback(address)
    {
        path.report(EXPOSE);
        return None;
    }
    Some(Input::Socket(Socket { address, listens, acknowledge, key: key.clone(), expose }))
}

const EXPOSE: &str = "other machines can reach this address and send records: listen on 127.0.0.1, or add expose = true, preferably with \
    key = \"source.key\" (see hushflow key source.key)";

/// Whether `host:port` is `localhost` or a loopback address; names are not resolved.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

const SCHEMES: &str =
    "a file, or tcp://host:port, tcp-listen://address:port, unix:///path, unix-listen:///path";

/// Reports socket fields that don't apply.
pub(super) fn check_socket(section: &Section<'_>, input: &Input) {
    let report = |key, message: &str| {
        if let Some(field) = section.get(key) {
            field.report(message);
        }
    };
    match input {
        Input::Socket(Socket {
            listens: true,
            address: Address::Tcp(_),
            acknowledge: true,
            expose: true,
            key: None,
        }) => {
            report(
                "acknowledge",
                "the number of records is private, and acknowledgements would reveal it to everyone who can reach the address: add key = \"source.key\"",
            );
        }
        Input::Socket(Socket { listens: true, address: Address::Tcp(_), .. }) => {}
        Input::Socket(Socket { listens: true, .. }) => report("expose", EXPOSE_TCP),
        _ => {
            report("key", "a key is only for tcp-listen:// and unix-listen://: leave it out");
            report("expose", EXPOSE_TCP);
        }
    }
}

const EXPOSE_TCP: &str = "other machines can reach only tcp-listen://: leave it out";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;

    const COLUMNS: &str =
        "columns = [{ name = 'x', lower = 0, upper = 1 }]\nprivacy = { epsilon = 1, delta = 1e-6 }";

    #[test]
    fn others_reach_a_source_only_where_the_pipeline_says_so() {
        let check = |source: &str, expected: Result<Socket, &str>| {
            let text = format!(
                "name = 'n'\nsource = {{ format = 'csv', {source} }}\n{COLUMNS}\nepochs = {{ records = 2, horizon = 9 }}"
            );
            let found =
                Pipeline::parse(&text, "dir/p.toml".as_ref()).map(|mut found| found.sources.remove(0).input);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, Input::Socket(expected), "{source}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{source}: {found:?}"),
            }
        };
        let listening = |address: &str| Socket {
            address: Address::Tcp(address.into()),
            listens: true,
            acknowledge: false,
            key: None,
            expose: false,
        };
        check("path = 'tcp-listen://localhost:7000'", Ok(listening("localhost:7000")));
        check("path = 'tcp-listen://[::1]:7000'", Ok(listening("[::1]:7000")));
        for address in ["0.0.0.0", "[::]", "10.0.0.1", "example.org", "127.0.0.1.example.org"] {
            check(&format!("path = 'tcp-listen://{address}:7000'"), Err("expose = true"));
        }
        let open = "path = 'tcp-listen://0.0.0.0:7000', expose = true";
        let exposed = Socket { expose: true, ..listening("0.0.0.0:7000") };
        check(open, Ok(exposed.clone()));
        check(&format!("{open}, acknowledge = true"), Err("add key"));
        let keyed = Socket { acknowledge: true, key: Some("dir/k".into()), ..exposed };
        check(&format!("{open}, acknowledge = true, key = 'k'"), Ok(keyed));
        check("path = 'tcp://localhost:7000', key = 'k'", Err("leave it out"));
        check("path = 'unix-listen://x', expose = true", Err("leave it out"));
        check("path = 'a.csv', expose = true", Err("leave it out"));
    }

    #[test]
    fn what_comes_from_a_network_moves_the_clock_by_a_tenth_of_the_horizon() {
        let jump = |source: &str, horizon: u64, clock: &str| {
            let text = format!(
                "name = 'n'\nsource = {{ {source} }}\n{COLUMNS}\nepochs = {{ time = 't', start = '2020-01-01', length = '1s', horizon = {horizon}, {clock} }}"
            );
            Pipeline::parse(&text, "p.toml".as_ref()).map(|pipeline| pipeline.sources[0].largest_jump).ok()
        };
        let seconds = |seconds: i64| Some(Some(1_000_000 * seconds));
        let socket = "path = 'tcp-listen://localhost:7000', format = 'csv'";
        assert_eq!(jump(socket, 1000, "arrival = 'a'"), seconds(100));
        assert_eq!(jump("path = 'redis://h', stream = 's'", 1000, "arrival = 'a'"), seconds(100));
        assert_eq!(jump(socket, 50, "arrival = 'a'"), seconds(10));
        assert_eq!(jump(&format!("{socket}, largest_jump = '1d'"), 1000, "arrival = 'a'"), seconds(86_400));
        assert_eq!(jump("path = 'a.csv'", 1000, "arrival = 'a'"), Some(None));
        assert_eq!(jump(socket, 1000, "clock = 'end-of-input'"), Some(None));
    }
}
