//! Decides where the layers of a model run, by the time and the memory that are predicted.

use std::cell::OnceCell;
use std::ops::Range;

use kiln::{DeviceMemory, Place, Shape, Tensor, TensorType};

use super::{Asked, Bytes, DeviceLayers, MemoryPlan, Placing, PlannedPart, has_gpus, is_gpu};
use crate::architecture::{Forward, Layout, Recorded, Rows, Step, caches};
use crate::text_parts::Parts;
use crate::{Error, Model, Result};

/// One part in this many of the free memory that a driver reports stays unused: code, the driver's graphs and the
/// granularity of allocations need some of it.
const LEFT_FREE: u64 = 32;

/// Bytes of allocations for tensors in a memory.
fn bytes<'t>(memory: DeviceMemory, tensors: impl IntoIterator<Item = &'t Tensor>) -> u64 {
    tensors.into_iter().map(|tensor| memory.allocation(tensor.ty().bytes() as u64)).fold(0, u64::saturating_add)
}

/// A GPU on which layers may be placed.
#[derive(Clone, Copy)]
struct Device {
    place: usize,
    memory: DeviceMemory,
    capacity: Option<u64>,
    scratch: u64,
}

/// The data that placing a model needs.
struct Planner<'m, 'a> {
    model: &'m Model<'m>,
    asked: Asked<'a>,
    /// The weights of each layer.
    layers: Vec<Vec<&'a Tensor>>,
    /// Bytes of the keys and of the values of one layer and one token.
    token: [u64; 2],
    /// Predicted seconds of a token on each placement of the engine, and the CPU placement.
    seconds: Vec<f64>,
    cpu: usize,
    /// [`Planner::scratch`] of the host, computed when first requested.
    host_scratch: OnceCell<u64>,
}

/// Decides where the layers of a model run, and plans the memory.
///
/// # Errors
/// [`Error::OutOfMemory`] if it does not fit the GPU that is to run it; [`Error::Model`] for more layers than the model
/// has, and for layers on a GPU that the engine does not have; [`Error::Kiln`].
pub(crate) fn plan<'m>(model: &'m Model<'m>, asked: Asked<'m>) -> Result<(Placing, MemoryPlan)> {
    let of_adapters = |i: usize| asked.adapters.into_iter().flat_map(move |adapters| adapters.of_layer(i));
    let layers =
        (0..model.config.layers.len()).map(|i| model.weights.of_layer(i).into_iter().chain(of_adapters(i)).collect());
    let layers = layers.collect();
    let row = |size: usize| {
        let shape = Shape::new(&[model.config.kv_heads, size])?;
        Ok::<_, Error>(TensorType::of(asked.cache, shape)?.bytes() as u64)
    };
    let token = [row(model.config.head)?, row(model.config.value_head)?];
    let host_scratch = OnceCell::new();
    let mut planner = Planner { model, asked, layers, token, seconds: Vec::new(), cpu: 0, host_scratch };
    planner.seconds = planner.record(1, &Placing::default())?.predicted(model.engine)?;
    let forced = model.engine.router().forced().filter(|&place| !is_gpu(&model.engine.places()[place]));
    planner.cpu = forced.or(planner.by_time(false).first().copied()).unwrap_or(0);
    if model.engine.router().forced().is_none() && has_gpus(model) {
        // On an engine with GPUs each CPU step is decided separately.
        let explained = planner.record(1, &Placing(vec![("host".into(), 0)]))?.explain()?;
        planner.seconds[planner.cpu] = explained.segments.last().map_or(f64::INFINITY, |segment| segment.finish);
    }
    planner.plan()
}

impl<'m> Planner<'m, '_> {
    fn places(&self) -> &'m [Place] {
        self.model.engine.places()
    }

    fn plan(&self) -> Result<(Placing, MemoryPlan)> {
        let (count, asked) = (self.layers.len(), self.model.device_layers);
        let wrong = |reason: String| Err(Error::model("placement", reason));
        if let DeviceLayers::Last(layers) = asked
            && layers > count
        {
            return wrong(format!("{layers} layers are to run on a GPU, and the model has {count}"));
        }
        if self.model.devices > 1
            && let DeviceLayers::Last(layers) = asked
            && layers < count
        {
            let devices = self.model.devices;
            return wrong(format!(
                "the model is divided over {devices} devices, so all {count} layers run there, not {layers}"
            ));
        }
        let forced = self.model.engine.router().forced();
        let (seconds, cpu) = (&self.seconds, self.cpu);
        let forced_gpu = forced.filter(|&place| is_gpu(&self.places()[place]));
        let on_cpu = |notice: Option<String>| {
            let plan = MemoryPlan { notice, ..self.with(&[], self.asked.context)? };
            // A forced CPU placement needs no pins, and neither does an engine without GPUs.
            let is_free = self.by_time(true).is_empty() || forced == Some(cpu);
            let placing = if is_free { Placing::default() } else { Placing(vec![("host".into(), 0)]) };
            Ok((placing, plan))
        };
        let may_be_none = asked == DeviceLayers::Predicted && forced_gpu.is_none();
        let candidates = match (forced_gpu, asked) {
            (_, DeviceLayers::Last(0)) => return on_cpu(None),
            (Some(gpu), _) => vec![gpu],
            (None, DeviceLayers::Predicted) if forced.is_some() => return on_cpu(None),
            (None, _) => self.by_time(true),
        };
        // A GPU that cannot be opened or cannot run the model is excluded if there is a choice.
        let mut problem = None;
        let mut devices = Vec::new();
        let mut others = candidates.into_iter();
        for place in others.by_ref() {
            if may_be_none && seconds[place] > seconds[cpu] {
                break;
            }
            match self.device(place) {
                Ok(found) => {
                    devices.push(found);
                    break;
                }
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        let Some(first) = devices.first() else {
            return match problem {
                Some(error) if !may_be_none => Err(error),
                Some(error) => on_cpu(Some(format!("everything runs on the CPU: {error}"))),
                None if may_be_none => on_cpu(None),
                None => {
                    let names: Vec<&str> = self.places().iter().map(|place| &*place.name).collect();
                    wrong(format!("no GPU is among the placements of the engine: {}", names.join(", ")))
                }
            };
        };
        let wanted = match asked {
            DeviceLayers::Last(layers) => layers,
            _ => count,
        };
        // Layers that do not fit the first device run on others of the same backend: one GPU may be a placement of two backends.
        let backend = self.places()[first.place].backend;
        let mut spread = self.spread(&devices, wanted, self.asked.context)?;
        if forced.is_none() && self.model.devices == 1 {
            for place in others.filter(|&place| self.places()[place].backend == backend) {
                if spread.iter().sum::<usize>() == wanted {
                    break;
                }
                devices.extend(self.device(place).ok());
                spread = self.spread(&devices, wanted, self.asked.context)?;
            }
        }
        let layers: usize = spread.iter().sum();
        let has_to_fit = match asked {
            DeviceLayers::Last(_) => true,
            DeviceLayers::Predicted => forced_gpu.is_some(),
            DeviceLayers::Fitting => false,
        };
        if layers < wanted && (has_to_fit || self.model.devices > 1) {
            return Err(self.out_of_memory(&devices, wanted)?);
        }
        if layers == 0 {
            let Device { place, capacity, .. } = devices[0];
            let name = &self.places()[place].name;
            let there = capacity.map_or_else(String::new, |capacity| format!(" {} of", Bytes(capacity)));
            return on_cpu(Some(format!("not one layer fits the{there} {name}: everything runs on the CPU")));
        }
        let on: Vec<(&Device, usize)> = devices.iter().zip(spread).filter(|&(_, layers)| layers > 0).collect();
        // The first device may have no room for any.
        let place = on[0].0.place;
        let name = &self.places()[place].name;
        let mut plan = self.with(&on, self.asked.context)?;
        if let [_] = plan.parts[..] {
            let is_forced = forced == Some(place);
            let placing = if is_forced { Placing::default() } else { Placing(vec![(name.clone(), 0)]) };
            return Ok((placing, plan));
        }
        let first_of = |part: &PlannedPart| {
            let place = if part.place == self.places()[cpu].name { "host" } else { &part.place };
            (place.to_owned(), part.layers.start)
        };
        let placing = Placing(plan.parts.iter().map(first_of).collect());
        let explained = self.record(1, &placing)?.explain()?;
        plan.seconds = explained.segments.last().map_or(0.0, |segment| segment.finish);
        plan.parts.iter_mut().for_each(|part| part.seconds = 0.0);
        for segment in &explained.segments {
            let at = plan.parts.iter().position(|part| part.place == segment.place).unwrap_or(0);
            plan.parts[at].seconds += segment.finish - segment.start;
        }
        if may_be_none && plan.seconds >= seconds[cpu] {
            let than =
                format!("{:.2} ms a token, {:.2} ms with {layers} layers", seconds[cpu] * 1e3, plan.seconds * 1e3);
            return on_cpu(Some(format!("the CPU alone is predicted to be faster: {than} on {name}")));
        }
        plan.notice = match on.len() {
            1 if layers < wanted => Some(format!("{layers} of {count} layers fit {name}, the others run on the CPU")),
            1 => None,
            gpus => {
                let others = if layers < count { ", the others on the CPU" } else { "" };
                Some(format!("{layers} of {count} layers run on {gpus} GPUs, one after another{others}"))
            }
        };
        Ok((placing, plan))
    }

    /// How many layers of the last `layers` each device takes: the first has the last layers, as many as fit, the next those before,
    /// and so on.
    fn spread(&self, devices: &[Device], layers: usize, context: usize) -> Result<Vec<usize>> {
        let mut spread: Vec<(&Device, usize)> = Vec::new();
        let mut left = layers;
        for device in devices {
            let mut fits = |layers: usize| {
                spread.push((device, layers));
                let plan = self.with(&spread, context);
                spread.pop();
                plan.map(|plan| plan.parts.iter().find(|part| self.is_on(part, device)).is_none_or(PlannedPart::fits))
            };
            let mut fitting = 0;
            if fits(left)? {
                fitting = left;
            }
            while fitting + 1 < left && fits(fitting + 1)? {
                fitting += 1;
            }
            spread.push((device, fitting));
            left -= fitting;
        }
        Ok(spread.into_iter().map(|(_, layers)| layers).collect())
    }

    fn is_on(&self, part: &PlannedPart, device: &Device) -> bool {
        part.place == self.places()[device.place].name
    }

    /// The GPUs or the CPU placements, fastest first; of equally fast ones the last comes first, as in other decisions.
    fn by_time(&self, gpus: bool) -> Vec<usize> {
        let of_kind = (0..self.seconds.len()).filter(|&place| is_gpu(&self.places()[place]) == gpus);
        let mut places: Vec<usize> = of_kind.collect();
        places.sort_by(|&a, &b| self.seconds[a].total_cmp(&self.seconds[b]).then(b.cmp(&a)));
        places
    }

    /// The graph of this many tokens.
    fn record(&self, rows: usize, placing: &Placing) -> Result<Step<'m>> {
        let Model { engine, config, weights, .. } = self.model;
        let of = Recorded { adapters: self.asked.adapters, layer: None, placing: Some(placing) };
        let caches = caches(config, self.asked.cache, self.asked.context)?;
        Step::record(Forward::record(engine, config, weights, of, &caches, self.asked.context, rows)?, config, weights)
    }

    /// Bytes of results and scratch memory on a placement, for the graphs of a context of this many tokens. Plans the
    /// graph of the most tokens; smaller graphs are assumed to need a proportional share.
    fn scratch(&self, place: usize, context: usize) -> Result<u64> {
        let rows = Parts::GPU.rows_for(context);
        let most = self.record(rows, &Placing::default())?.planned_bytes(&self.places()[place].name)?;
        let all: usize = Parts::GPU.up_to(context).sum();
        let of_session = (most as f64 * all as f64 / rows as f64) as u64;
        Ok(of_session.saturating_add(self.scratch_of_sequences(place, context)?))
    }

    /// The same for the steps of several sequences: graphs of 1, 2, 4 and more rows, up to one for each sequence.
    fn scratch_of_sequences(&self, place: usize, context: usize) -> Result<u64> {
        let Model { engine, config, weights, .. } = self.model;
        // One more computes prompts.
        let slots = self.asked.sequences.saturating_sub(1);
        let layout = Layout { slots, kv_heads: config.kv_heads, context };
        let Some(rows) = layout.rows().filter(|_| slots > 0) else { return Ok(0) };
        let caches = Layout::caches(config, self.asked.cache, rows)?;
        let graph = Rows::record(engine, config, weights, &caches, &Placing::default(), layout, slots)?;
        let most = graph.planned_bytes(&self.places()[place].name)?;
        let fewer: usize = std::iter::successors(Some(1), |rows| Some(2 * rows)).take_while(|&rows| rows < slots).sum();
        Ok((most as f64 * (fewer + slots) as f64 / slots as f64) as u64)
    }

    /// The properties of a GPU. Opens it.
    fn device(&self, place: usize) -> Result<Device> {
        let name = &self.places()[place].name;
        let memory = self.model.engine.device_memory(name)?;
        // Weights that other sessions uploaded are resident already.
        let is_there = |tensor: &&Tensor| tensor.residency().iter().any(|holder| holder == name);
        let there = bytes(memory, self.model.weights.all().into_iter().filter(is_there));
        let free = memory.free.map(|free| (free - free / LEFT_FREE).saturating_add(there));
        let capacity = [free, memory.limit].into_iter().flatten().min();
        Ok(Device { place, memory, capacity, scratch: self.scratch_on_gpu(place, self.asked.context)? })
    }

    /// The same for a GPU, whose allocations are up to an eighth larger than their contents.
    fn scratch_on_gpu(&self, place: usize, context: usize) -> Result<u64> {
        let scratch = self.scratch(place, context)?;
        Ok(scratch.saturating_add(scratch / 8))
    }

    /// Bytes of the keys and values of some layers, for contexts of this many tokens. If there are several sequences,
    /// the one that computes prompts has memory of its own.
    fn cache(&self, memory: DeviceMemory, layers: usize, context: usize) -> u64 {
        let apart = if self.asked.sequences > 1 { vec![self.asked.sequences - 1, 1] } else { vec![1] };
        let of = |sequences: usize| {
            let tokens = (context as u64).saturating_mul(sequences as u64);
            self.token
                .map(|token| memory.allocation(token.saturating_mul(tokens)))
                .into_iter()
                .fold(0, u64::saturating_add)
        };
        apart.into_iter().map(of).fold(0, u64::saturating_add).saturating_mul(layers as u64)
    }

    /// The plan with this many layers on each of some GPUs, the last layers on the first, for contexts of this many tokens. Each layer
    /// is assumed to take an equal share of the total time.
    fn with(&self, on: &[(&Device, usize)], context: usize) -> Result<MemoryPlan> {
        let (count, weights) = (self.layers.len(), &self.model.weights);
        let part = |place: usize, range: Range<usize>, memory: DeviceMemory, scratch: u64, capacity: Option<u64>| {
            let of_layers = bytes(memory, self.layers[range.clone()].iter().flatten().copied());
            let ends = match (range.start == 0, range.end == count) {
                (true, true) => bytes(memory, weights.ends()),
                (true, false) => bytes(memory, [weights.embedding()]),
                (false, true) => bytes(memory, weights.head()),
                (false, false) => 0,
            };
            PlannedPart {
                place: self.places()[place].name.clone(),
                weights: of_layers.saturating_add(ends),
                cache: self.cache(memory, range.len(), context),
                seconds: self.seconds[place] * range.len() as f64 / count as f64,
                layers: range,
                scratch,
                capacity,
            }
        };
        let mut parts = Vec::new();
        let mut end = count;
        for &(device, layers) in on.iter().filter(|&&(_, layers)| layers > 0) {
            let range = end - layers..end;
            end = range.start;
            parts.push(part(device.place, range, device.memory, device.scratch, device.capacity));
        }
        if end > 0 {
            let scratch = match self.host_scratch.get() {
                Some(&known) => known,
                None => *self.host_scratch.get_or_init({
                    let scratch = self.scratch(self.cpu, self.asked.context)?;
                    move || scratch
                }),
            };
            parts.push(part(self.cpu, 0..end, DeviceMemory::default(), scratch, None));
        }
        parts.reverse();
        let seconds = parts.iter().map(|part| part.seconds).sum();
        Ok(MemoryPlan { context, parts, seconds, notice: None })
    }

    /// The error for more layers than fit these devices, with the context that would fit.
    fn out_of_memory(&self, devices: &[Device], layers: usize) -> Result<Error> {
        // What the others have no room for is shown on the last.
        let mut spread = self.spread(devices, layers, self.asked.context)?;
        let placed: usize = spread.iter().sum();
        if let Some(last) = spread.last_mut() {
            *last += layers - placed;
        }
        let on: Vec<(&Device, usize)> = devices.iter().zip(spread).collect();
        let plan = self.with(&on, self.asked.context)?;
        let (mut largest, mut beyond) = (None, self.asked.context);
        // Graphs of fewer tokens need less scratch memory, and shorter contexts do not use the larger graphs.
        for fewest in Parts::GPU.fewest().rev() {
            if fewest >= beyond {
                continue;
            }
            let smaller =
                |device: &Device| Ok(Device { scratch: self.scratch_on_gpu(device.place, fewest)?, ..*device });
            let devices = devices.iter().map(smaller).collect::<Result<Vec<_>>>()?;
            let fits = |context: usize| {
                Ok::<_, Error>(self.spread(&devices, layers, context)?.iter().sum::<usize>() == layers)
            };
            if fits(fewest)? {
                let mut fitting = fewest;
                while beyond - fitting > 1 {
                    let middle = fitting + (beyond - fitting) / 2;
                    *(if fits(middle)? { &mut fitting } else { &mut beyond }) = middle;
                }
                largest = Some(fitting);
                break;
            }
            beyond = fewest;
        }
        Ok(Error::OutOfMemory { plan: Box::new(plan), largest })
    }
}
