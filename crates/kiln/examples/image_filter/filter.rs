//! The pipeline: a Gaussian blur and the two Sobel derivatives as convolutions, their length element by element, all
//! recorded in one batch.

use std::error::Error;
use std::path::Path;

use image::{GrayImage, ImageReader, Limits};
use kiln::graph::TensorId;
use kiln::op::Padding;
use kiln::{Batch, Engine, Record};

/// A picture in shades of grey: luminance from 0 to 1, row by row.
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
    /// A sentence with the path, for files that are not there, not pictures, damaged, or unreasonably large.
    pub(crate) fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        Self::decode(path).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    fn decode(path: &Path) -> Result<Self, Box<dyn Error>> {
        let mut reader = ImageReader::open(path)?.with_guessed_format()?;
        // A few bytes of a hostile file can announce a picture that fills the memory.
        let mut limits = Limits::default();
        limits.max_image_width = Some(1 << 15);
        limits.max_image_height = Some(1 << 15);
        limits.max_alloc = Some(1 << 30);
        reader.limits(limits);
        let grey = reader.decode()?.to_luma32f();
        let (width, height) = (grey.width() as usize, grey.height() as usize);
        Ok(Self { width, height, luminance: grey.into_raw() })
    }

    /// The picture with 8 bits a pixel.
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
    #[allow(dead_code)] // whoever shows the picture elsewhere does not write it
    pub(crate) fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        self.to_image()
            .save_with_format(path, image::ImageFormat::Png)
            .map_err(|e| format!("{}: {e}", path.display()).into())
    }
}

/// Weights of a Gaussian of standard deviation 1 over five pixels: their products are the blur.
const GAUSSIAN: [f32; 5] = [0.0545, 0.2442, 0.4026, 0.2442, 0.0545];
/// The derivative across; its transpose is that down.
const SOBEL: [f32; 9] = [-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0];

/// Blur and edges of pictures of one size. Recorded once, run for as many pictures as there are.
pub(crate) struct EdgeFilter<'e> {
    batch: Batch<'e>,
    picture: TensorId,
    edges: TensorId,
}

impl<'e> EdgeFilter<'e> {
    /// Records the pipeline.
    ///
    /// # Errors
    /// [`kiln::Error::Shape`] for pictures smaller than seven pixels across or down: the filters need as many.
    pub(crate) fn new(engine: &'e Engine, width: usize, height: usize) -> kiln::Result<Self> {
        let mut batch = engine.batch();
        let gaussian: Vec<f32> = GAUSSIAN.iter().flat_map(|a| GAUSSIAN.map(|b| a * b)).collect();
        let transposed: Vec<f32> = (0..9).map(|i| SOBEL[i % 3 * 3 + i / 3]).collect();
        let picture = batch.upload(&vec![0.0; width * height], &[height, width])?;
        let gaussian = batch.upload(&gaussian, &[5, 5])?;
        let across = batch.upload(&SOBEL, &[3, 3])?;
        let down = batch.upload(&transposed, &[3, 3])?;
        // Only whole neighbourhoods: padding would draw a frame around the picture.
        let blurred = batch.convolve2d(picture, gaussian, Padding::Valid)?;
        let dx = batch.convolve2d(blurred, across, Padding::Valid)?;
        let dy = batch.convolve2d(blurred, down, Padding::Valid)?;
        let squares = batch.mul(dx, dx)?;
        let squares = batch.fma(dy, dy, squares)?;
        let length = batch.sqrt(squares)?;
        let edges = batch.clip(length, 0.0, 1.0)?;
        Ok(Self { batch, picture, edges })
    }

    /// The edges of a picture, three pixels less on every side.
    ///
    /// # Errors
    /// [`kiln::Error::Length`] when the picture has another number of pixels.
    pub(crate) fn run(&mut self, picture: &Picture) -> kiln::Result<Picture> {
        self.batch.set(self.picture, &picture.luminance)?;
        self.batch.execute(&[self.edges])?;
        let shape = self.batch.shape(self.edges)?;
        let luminance = self.batch.read(self.edges)?.to_vec();
        Ok(Picture { width: shape.columns(), height: shape.rows(), luminance })
    }
}
