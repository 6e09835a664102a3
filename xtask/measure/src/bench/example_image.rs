//! The image of the report: the pipeline of the example `image_filter`.

use std::fmt::Write;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::Instant;

use image::ImageFormat;
use kiln::Engine;
use serde::Serialize;

use crate::Result;
use filter::{EdgeFilter, Picture};

#[path = "../../../../crates/kiln/examples/image_filter/filter.rs"]
mod filter;

/// The image that is shipped: Eileen Collins, a NASA portrait in the public domain.
const SHIPPED: &[u8] = include_bytes!("../../../../crates/kiln/examples/image_filter/astronaut.png");
/// The number of runs of the pipeline; the median counts.
const RUNS: usize = 21;

/// An image before and after.
#[derive(Debug, Serialize)]
pub(super) struct Filtered {
    pub(super) name: String,
    pub(super) width: usize,
    pub(super) height: usize,
    /// Seconds for the whole pipeline, the median of several runs.
    pub(super) seconds: f64,
    /// As data URIs, left out of the JSON.
    #[serde(skip)]
    pub(super) original: String,
    #[serde(skip)]
    pub(super) filtered: String,
}

/// The image to filter.
pub(super) struct Source {
    path: PathBuf,
    picture: Picture,
}

impl Source {
    /// Reads an image of the user, or the shipped one, which is part of the program and is written to `out`.
    pub(super) fn open(path: Option<&Path>, out: &Path) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let path = out.join("astronaut.png");
                crate::write(&path, SHIPPED)?;
                path
            }
        };
        let picture = Picture::read(&path)?;
        Ok(Self { path, picture })
    }
}

/// Filters the image.
pub(super) fn run(engine: &Engine, source: &Source) -> Result<Filtered> {
    let Source { path, picture } = source;
    let mut filter = EdgeFilter::new(engine, picture.width, picture.height)?;
    let mut edges = filter.run(picture)?;
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        edges = filter.run(picture)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let mut colour = filter::decode(&filter::bytes_of(path)?)?.to_rgb8();
    if colour.width() > 1024 {
        // The page shows it at this size or smaller.
        let height = (1024.0 * f64::from(colour.height()) / f64::from(colour.width())).round().max(1.0) as u32;
        colour = image::imageops::thumbnail(&colour, 1024, height);
    }
    let (mut original, mut filtered) = (Cursor::new(Vec::new()), Cursor::new(Vec::new()));
    colour.write_to(&mut original, ImageFormat::Jpeg)?;
    edges.to_image().write_to(&mut filtered, ImageFormat::Jpeg)?;
    let result = Filtered {
        name: path.file_name().map_or("picture".into(), |n| n.to_string_lossy().into_owned()),
        width: picture.width,
        height: picture.height,
        seconds: times[RUNS / 2],
        original: data_uri(original.get_ref()),
        filtered: data_uri(filtered.get_ref()),
    };
    println!(
        "  {}: blur and edges of {} x {} pixels in {:.2} ms",
        result.name,
        result.width,
        result.height,
        result.seconds * 1e3
    );
    Ok(result)
}

/// A JPEG as part of a page.
fn data_uri(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut uri = String::from("data:image/jpeg;base64,");
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, &b| bits << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit) & 63) as usize;
            // Writing to a string does not fail.
            let _ = if digit <= chunk.len() { write!(uri, "{}", DIGITS[index] as char) } else { write!(uri, "=") };
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let encoded =
            |text: &str| data_uri(text.as_bytes()).split_once(',').map(|p| p.1.to_owned()).unwrap_or_default();
        assert_eq!(["", "f", "fo", "foo", "foob"].map(encoded), ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }

    #[test]
    fn damaged_pictures_are_errors() {
        let path = std::env::temp_dir().join(format!("kiln-picture-{}.png", std::process::id()));
        for bytes in [&SHIPPED[..0], &SHIPPED[..20], &SHIPPED[..5000], b"GIF89a no picture"] {
            std::fs::write(&path, bytes).unwrap();
            assert!(Picture::read(&path).is_err(), "{} bytes", bytes.len());
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Picture::read(&path).is_err());
    }

    #[test]
    fn half_a_jpeg_is_an_error() {
        let whole = image::load_from_memory(SHIPPED).unwrap().to_rgb8();
        let mut bytes = Cursor::new(Vec::new());
        whole.write_to(&mut bytes, ImageFormat::Jpeg).unwrap();
        let bytes = bytes.into_inner();
        let path = std::env::temp_dir().join(format!("kiln-half-{}.jpg", std::process::id()));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Picture::read(&path).map(|picture| picture.luminance.len())
        };
        assert_eq!(read(&bytes).unwrap(), 512 * 512);
        let trailing = [&bytes[..], b"what some cameras append"].concat();
        assert_eq!(read(&trailing).unwrap(), 512 * 512);
        for length in [bytes.len() / 3, bytes.len() / 2, bytes.len() - 2] {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_picture_that_would_fill_the_memory_is_an_error() {
        let path = std::env::temp_dir().join(format!("kiln-large-{}.png", std::process::id()));
        // The header of a grey image of 20 000 x 20 000 pixels, and no pixels.
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x4e\x20\0\0\x4e\x20\x08\0\0\0\0".to_vec();
        let crc = bytes[12..].iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
        });
        bytes.extend((!crc).to_be_bytes());
        // An empty stream of pixels, for readers that look for its start.
        bytes.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        std::fs::write(&path, &bytes).unwrap();
        let error = Picture::read(&path).err().unwrap().to_string();
        assert!(error.contains("20000 x 20000 pixels are more than 36 million"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_picture_that_is_too_small_is_an_error() {
        let engine = Engine::builder().without_profile().build().unwrap();
        let error = EdgeFilter::new(&engine, 6, 100).err().unwrap().to_string();
        assert!(error.contains("6 x 100 pixels") && error.contains("7 x 7"), "{error}");
        let mut filter = EdgeFilter::new(&engine, 7, 8).unwrap();
        let flat = Picture { width: 7, height: 8, luminance: vec![0.5; 56] };
        let edges = filter.run(&flat).unwrap();
        assert_eq!((edges.width, edges.height), (1, 2));
        assert!(edges.luminance.iter().all(|v| v.abs() < 1e-5), "a flat picture has no edges");
    }
}
