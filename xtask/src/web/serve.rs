//! A server of files for this machine alone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::Result;

/// The longest head of a request that is read.
const LONGEST_HEAD: u64 = 16 << 10;

/// Isolation, which gives the page a clock of microseconds; nothing from elsewhere, and nothing kept.
const HEADERS: &str = "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Embedder-Policy: require-corp\r\n\
    Content-Security-Policy: default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data: blob:\r\n\
    X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n";

/// Serves the files of a folder on 127.0.0.1.
pub(super) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    folder: PathBuf,
}

impl Server {
    /// Opens a port; 0 is any that is free.
    pub(super) fn open(folder: &Path, port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|error| format!("port {port}: {error}"))?;
        Ok(Self { address: listener.local_addr()?, listener, folder: folder.to_owned() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the process ends.
    pub(super) fn run(self) {
        for stream in self.listener.incoming().flatten() {
            let folder = self.folder.clone();
            // A client that disconnects does not affect the others.
            std::thread::spawn(move || drop(answer(stream, &folder)));
        }
    }
}

fn answer(mut stream: TcpStream, folder: &Path) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = BufReader::new(stream.try_clone()?.take(LONGEST_HEAD));
    let mut request = String::new();
    head.read_line(&mut request)?;
    let mut line = String::new();
    while head.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, file(folder, target)) {
        ("GET" | "HEAD", Some((kind, body))) => ("200 OK", kind, body),
        ("GET" | "HEAD", None) => ("404 Not Found", "text/plain", b"not here\n".to_vec()),
        _ => ("405 Method Not Allowed", "text/plain", b"only GET and HEAD are allowed\n".to_vec()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{HEADERS}\r\n", body.len())?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    stream.flush()
}

/// The type and the bytes of the requested file. A target cannot name a file outside of the folder.
fn file(folder: &Path, target: &str) -> Option<(&'static str, Vec<u8>)> {
    let path = target.split(['?', '#']).next()?.trim_start_matches('/');
    let path = Path::new(if path.is_empty() { "index.html" } else { path });
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let kind = match path.extension()?.to_str()? {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "ts" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "png" => "image/png",
        "gguf" => "application/octet-stream",
        _ => return None,
    };
    Some((kind, std::fs::read(folder.join(path)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_folder_are_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/kiln-web/page");
        let kind = |target| file(&folder, target).map(|(kind, _)| kind);
        assert_eq!(kind("/"), Some("text/html; charset=utf-8"));
        assert_eq!(kind("/page.js?webgpu=off"), Some("text/javascript; charset=utf-8"));
        for outside in ["/../Cargo.toml", "/../src/lib.rs", "/.././page/page.js", "/missing.js", "/etc/passwd"] {
            assert_eq!(kind(outside), None, "{outside}");
        }
    }
}
