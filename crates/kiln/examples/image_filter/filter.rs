//! The pipeline: a Gaussian blur and the two Sobel derivatives as convolutions, their length element by element, all
//! recorded in one batch.

use std::error::Error;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use kiln::graph::TensorId;
use kiln::op::Padding;
use kiln::{Batch, Engine, Record};

/// A few bytes of a hostile file can announce an image that fills the memory: to decode and to filter one takes about 30 bytes
/// a pixel, so this many take 1 GiB.
const MAX_PIXELS: u64 = 36_000_000;

/// A file larger than this cannot be an image within the limit of pixels.
const MAX_BYTES: u64 = 1 << 28;

/// An image in shades of grey: luminance from 0 to 1, row by row.
pub(crate) struct Picture {
    /// Pixels across.
    pub(crate) width: usize,
    /// Pixels down.
    pub(crate) height: usize,
    /// `width * height` values.
    pub(crate) luminance: Vec<f32>,
}

impl Picture {
    /// Reads a PNG or JPEG.
    ///
    /// # Errors
    /// A sentence with the path, for files that are not there, not images, damaged, or unreasonably large.
    pub(crate) fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        Self::decode(path).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    fn decode(path: &Path) -> Result<Self, Box<dyn Error>> {
        Self::from_bytes(&bytes_of(path)?)
    }

    /// Decodes the bytes of a PNG or JPEG.
    ///
    /// # Errors
    /// A sentence for bytes that are not an image, damaged, or unreasonably large.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Box<dyn Error>> {
        let grey = decode(bytes)?.to_luma32f();
        let (width, height) = (grey.width() as usize, grey.height() as usize);
        // The weights of red, green and blue add up to a little more than 1.
        let luminance = grey.into_raw().into_iter().map(|shade| shade.clamp(0.0, 1.0)).collect();
        Ok(Self { width, height, luminance })
    }

    /// The image with 8 bits a pixel.
    pub(crate) fn to_image(&self) -> GrayImage {
        let shade = |x: u32, y: u32| {
            let value = self.luminance.get(y as usize * self.width + x as usize).copied().unwrap_or(0.0);
            image::Luma([(value * 255.0).round() as u8])
        };
        GrayImage::from_fn(self.width as u32, self.height as u32, shade)
    }

    /// Writes a PNG.
    ///
    /// # Errors
    /// A sentence with the path.
    #[allow(dead_code)] // callers that display the image do not write it
    pub(crate) fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        self.write_png(path).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    #[allow(dead_code)]
    fn write_png(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        // Encodes into memory first: a buffered writer that is dropped does not report a full disk.
        let mut png = Cursor::new(Vec::new());
        self.to_image().write_to(&mut png, ImageFormat::Png)?;
        let mut file = File::create(path)?;
        file.write_all(png.get_ref())?;
        // Some systems report a full disk or an exceeded quota only here. Pipes and devices cannot be synchronized.
        if file.metadata()?.is_file() {
            file.sync_all()?;
        }
        Ok(())
    }
}

/// The bytes of a file, unless it is larger than an image can be.
pub(crate) fn bytes_of(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("the file is larger than {} MiB", MAX_BYTES >> 20).into());
    }
    Ok(bytes)
}

/// Decodes a PNG or JPEG, turned as its EXIF orientation says.
///
/// # Errors
/// For bytes that are not an image, damaged, or unreasonably large.
pub(crate) fn decode(bytes: &[u8]) -> Result<DynamicImage, Box<dyn Error>> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    let format = reader.format();
    let mut limits = Limits::default();
    limits.max_alloc = Some(1 << 30);
    reader.limits(limits);
    // Checked before decoding: a decoder's error for a truncated file depends on the place of truncation.
    if format == Some(ImageFormat::Jpeg) && !jpeg_is_whole(bytes) {
        return Err("the JPEG is cut short: it has no end marker".into());
    }
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS {
        let most = MAX_PIXELS / 1_000_000;
        return Err(format!("{width} x {height} pixels are more than {most} million, which take 1 GiB").into());
    }
    // Damaged EXIF data do not make the image invalid.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut decoded = DynamicImage::from_decoder(decoder)?;
    decoded.apply_orientation(orientation);
    Ok(decoded)
}

/// Whether a JPEG has its end: decoders fill what is missing with grey and say nothing.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[first, second]) = bytes.get(at..at + 2) {
        at += match (first, second) {
            (0xff, 0xd9) => return true,
            // A byte 255 of the image itself, a restart marker, or padding.
            (0xff, 0x00 | 0x01 | 0xd0..=0xd7) => 2,
            (0xff, 0xff) => 1,
            // Any other marker begins a segment that states its own length.
            (0xff, _) => 2 + bytes.get(at + 2..at + 4).map_or(0, |n| usize::from(n[0]) << 8 | usize::from(n[1])),
            _ => 1,
        };
    }
    false
}

/// Weights of a Gaussian of standard deviation 1 over five pixels: their products are the blur.
const GAUSSIAN: [f32; 5] = [0.0545, 0.2442, 0.4026, 0.2442, 0.0545];
/// The derivative across; its transpose is that down.
const SOBEL: [f32; 9] = [-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0];

/// Blur and edges of images of one size. Recorded once, run for as many images as there are.
pub(crate) struct EdgeFilter<'e> {
    batch: Batch<'e>,
    picture: TensorId,
    edges: TensorId,
}

impl<'e> EdgeFilter<'e> {
    /// Records the pipeline.
    ///
    /// # Errors
    /// [`kiln::Error::Shape`] for images smaller than seven pixels across or down: the filters need as many.
    pub(crate) fn new(engine: &'e Engine, width: usize, height: usize) -> kiln::Result<Self> {
        if width < 7 || height < 7 {
            let reason = format!("the image has {width} x {height} pixels, blur and edges need 7 x 7 at least");
            return Err(kiln::Error::Shape { op: "image_filter", reason });
        }
        let mut batch = engine.batch();
        let gaussian: Vec<f32> = GAUSSIAN.iter().flat_map(|a| GAUSSIAN.map(|b| a * b)).collect();
        let transposed: Vec<f32> = (0..9).map(|i| SOBEL[i % 3 * 3 + i / 3]).collect();
        let picture = batch.upload(&vec![0.0; width * height], &[height, width])?;
        let gaussian = batch.upload(&gaussian, &[5, 5])?;
        let across = batch.upload(&SOBEL, &[3, 3])?;
        let down = batch.upload(&transposed, &[3, 3])?;
        // Valid padding: any other padding would draw a frame around the image.
        let blurred = batch.convolve2d(picture, gaussian, Padding::Valid)?;
        let dx = batch.convolve2d(blurred, across, Padding::Valid)?;
        let dy = batch.convolve2d(blurred, down, Padding::Valid)?;
        let squares = batch.mul(dx, dx)?;
        let squares = batch.fma(dy, dy, squares)?;
        let length = batch.sqrt(squares)?;
        let edges = batch.clip(length, 0.0, 1.0)?;
        Ok(Self { batch, picture, edges })
    }

    /// The edges of an image, three pixels less on every side.
    ///
    /// # Errors
    /// [`kiln::Error::Length`] when the image has another number of pixels.
    pub(crate) fn run(&mut self, picture: &Picture) -> kiln::Result<Picture> {
        self.batch.set(self.picture, &picture.luminance)?;
        self.batch.execute(&[self.edges])?;
        let shape = self.batch.shape(self.edges)?;
        let luminance = self.batch.read(self.edges)?;
        Ok(Picture { width: shape.columns(), height: shape.rows(), luminance })
    }
}
