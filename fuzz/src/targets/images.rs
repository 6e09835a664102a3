//! Images that the example `image_filter` reads.

use std::io::Cursor;

use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage, Rgba, RgbaImage};

#[path = "../../../crates/kiln/examples/image_filter/filter.rs"]
#[allow(dead_code, unreachable_pub, reason = "what the example has beside files")]
mod filter;

/// PNG and JPEG of several kinds of pixels, and a JPEG with an orientation.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let grey = GrayImage::from_fn(16, 8, |x, y| Luma([(x * 16 + y) as u8]));
    let colour = RgbImage::from_fn(9, 11, |x, y| Rgb([(x * 25) as u8, (y * 20) as u8, 7]));
    let clear = RgbaImage::from_fn(5, 4, |x, y| Rgba([(x * 50) as u8, 0, 9, (y * 60) as u8]));
    let encoded = |write: &dyn Fn(&mut Cursor<Vec<u8>>) -> image::ImageResult<()>| {
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes).expect("a Vec takes everything");
        bytes.into_inner()
    };
    let jpeg = encoded(&|to| grey.write_to(to, ImageFormat::Jpeg));
    vec![
        encoded(&|to| grey.write_to(to, ImageFormat::Png)),
        encoded(&|to| colour.write_to(to, ImageFormat::Png)),
        encoded(&|to| clear.write_to(to, ImageFormat::Png)),
        encoded(&|to| colour.write_to(to, ImageFormat::Jpeg)),
        oriented(&jpeg),
        jpeg,
    ]
}

/// A JPEG with EXIF data that turn it.
fn oriented(jpeg: &[u8]) -> Vec<u8> {
    let exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], b"\xff\xe1", &length, exif, &jpeg[2..]].concat()
}

/// Decodes an image: as many shades as it has pixels.
pub(crate) fn run(bytes: &[u8]) {
    match filter::Picture::from_bytes(bytes) {
        Ok(picture) => {
            assert_eq!(picture.luminance.len(), picture.width * picture.height);
            let outside = picture.luminance.iter().find(|shade| !(0.0..=1.0).contains(*shade));
            assert_eq!(outside, None);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
