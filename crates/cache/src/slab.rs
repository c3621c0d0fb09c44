//! Numbered places that are used again, with a generation each, so that an old number is told from a new one.

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.places[at as usize].1 = Some(value);
            return at;
        }
        self.places.push((0, Some(value)));
        (self.places.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let (generation, place) = self.places.get_mut(at as usize)?;
        let value = place.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(at);
        Some(value)
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.1.as_mut()
    }

    pub(crate) fn generation(&self, at: u32) -> u32 {
        self.places.get(at as usize).map_or(0, |place| place.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(at, (_, place))| Some((at as u32, place.as_ref()?)))
    }

    /// Bytes of the places themselves.
    pub(crate) fn heap(&self) -> usize {
        self.places.capacity() * size_of::<(u32, Option<T>)>()
            + self.free.capacity() * size_of::<u32>()
    }
}
