//! Edges of an image: `cargo run --release --example image_filter -- image.jpg edges.png`.
//!
//! Reads a PNG or JPEG, blurs it, finds its edges, and writes them as a PNG.

mod filter;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use filter::{EdgeFilter, Picture};
use kiln::Engine;

fn main() -> ExitCode {
    // File names need not be UTF-8.
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [input, output] = &arguments[..] else {
        eprintln!("usage: image_filter IMAGE OUTPUT.png");
        return ExitCode::from(2);
    };
    match run(Path::new(input), Path::new(output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(input: &Path, output: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let picture = Picture::read(input)?;
    let engine = Engine::new()?;
    let mut filter = EdgeFilter::new(&engine, picture.width, picture.height)?;
    let start = Instant::now();
    let edges = filter.run(&picture)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{} x {} pixels in {:.2} ms", picture.width, picture.height, seconds * 1e3);
    edges.write(output)?;
    println!("written to {}", output.display());
    Ok(())
}
