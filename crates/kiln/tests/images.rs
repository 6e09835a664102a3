//! Images that the example `image_filter` reads and writes, sound and hostile.

#![cfg(not(target_arch = "wasm32"))] // no files on this target

use std::io::Cursor;
use std::path::{Path, PathBuf};

use filter::Picture;
use image::{GrayImage, ImageFormat, Luma};

#[path = "../examples/image_filter/filter.rs"]
#[allow(dead_code, unreachable_pub)] // items of the example that read and write files
mod filter;

/// A JPEG of 16 x 8 pixels whose left half is white.
fn jpeg() -> Vec<u8> {
    let half = GrayImage::from_fn(16, 8, |x, _| Luma([if x < 8 { 255 } else { 0 }]));
    let mut bytes = Cursor::new(Vec::new());
    half.write_to(&mut bytes, ImageFormat::Jpeg).unwrap();
    bytes.into_inner()
}

/// The JPEG with EXIF data that state an orientation.
fn oriented(orientation: u8) -> Vec<u8> {
    let mut exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
    let mut bytes = vec![0xff, 0xd8, 0xff, 0xe1];
    bytes.extend((exif.len() as u16 + 2).to_be_bytes());
    bytes.extend(exif);
    bytes.extend(&jpeg()[2..]);
    bytes
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kiln-image-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn read(name: &str, bytes: &[u8]) -> Result<Picture, String> {
    let path = file(name, bytes);
    let picture = Picture::read(&path).map_err(|error| error.to_string());
    std::fs::remove_file(path).unwrap();
    picture
}

#[test]
fn an_image_is_turned_as_its_orientation_says() {
    // The side of the white half: left, right, top (turned to the right), bottom (turned to the left).
    for (orientation, size, white) in
        [(1, (16, 8), (2, 4)), (3, (16, 8), (13, 4)), (6, (8, 16), (4, 2)), (8, (8, 16), (4, 13))]
    {
        let picture = read("turned.jpg", &oriented(orientation)).unwrap();
        assert_eq!((picture.width, picture.height), size, "orientation {orientation}");
        let at = |x: usize, y: usize| picture.luminance[y * picture.width + x];
        let (x, y) = white;
        assert!(at(x, y) > 0.9, "orientation {orientation}");
        assert!(at(picture.width - 1 - x, picture.height - 1 - y) < 0.1, "orientation {orientation}");
    }
    // A value that is not one of the eight, and damaged data.
    assert_eq!(read("turned.jpg", &oriented(77)).unwrap().width, 16);
}

#[test]
fn a_header_that_would_fill_the_memory_is_refused() {
    let mut bytes = jpeg();
    let frame = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    // Height and width of the frame.
    bytes[frame + 5..frame + 9].copy_from_slice(&[0x27, 0x0f, 0x27, 0x0f]);
    let error = read("large.jpg", &bytes).err().unwrap();
    assert!(error.contains("9999 x 9999 pixels are more than 36 million, which take 1 GiB"), "{error}");
}

#[test]
fn a_jpeg_without_its_end_is_cut_short() {
    let bytes = jpeg();
    for length in [bytes.len() - 1, bytes.len() - 2, bytes.len() / 2, bytes.len() / 4, 20] {
        let error = read("short.jpg", &bytes[..length]).err().unwrap();
        assert!(error.contains("the JPEG is cut short"), "{length} bytes: {error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let picture = read("whole.jpg", &jpeg()).unwrap();
    let error = picture.write(Path::new("/dev/full")).err().unwrap().to_string();
    assert!(error.starts_with("/dev/full: "), "{error}");
    let path = file("out.png", b"");
    picture.write(&path).unwrap();
    assert_eq!(Picture::read(&path).unwrap().width, 16);
    std::fs::remove_file(path).unwrap();
}
