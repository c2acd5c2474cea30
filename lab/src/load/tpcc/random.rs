//! Random numbers, names and strings (clauses 2.1.6 and 4.3.2).

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// The parts of which last names are made (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// The constants C of the NURand function; any value is allowed as long as a run keeps it.
const C_FOR_LAST_NAME: u32 = 123;
const C_FOR_CUSTOMER: u32 = 259;
const C_FOR_ITEM: u32 = 4211;

/// NURand(A, low, high): a number that is not uniformly distributed.
fn nurand(rng: &mut StdRng, a: u32, c: u32, low: u32, high: u32) -> u32 {
    let (hot, uniform) = (rng.random_range(0..=a), rng.random_range(low..=high));
    ((hot | uniform) + c) % (high - low + 1) + low
}

/// A customer's number within its district.
pub fn customer(rng: &mut StdRng, customers: u32) -> u32 {
    nurand(rng, 1023, C_FOR_CUSTOMER, 1, customers)
}

/// An item's number.
pub fn item(rng: &mut StdRng, items: u32) -> u32 {
    nurand(rng, 8191, C_FOR_ITEM, 1, items)
}

/// A last name that some customer has.
pub fn last_name(rng: &mut StdRng, names: u32) -> String {
    last_name_of(nurand(rng, 255, C_FOR_LAST_NAME, 0, names - 1))
}

/// The last name with this number (0–999).
pub fn last_name_of(number: u32) -> String {
    [number / 100 % 10, number / 10 % 10, number % 10]
        .map(|digit| SYLLABLES[digit as usize])
        .concat()
}

/// A string of letters and digits, its length from a range.
pub fn a_string(rng: &mut StdRng, shortest: usize, longest: usize) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let length = rng.random_range(shortest..=longest);
    (0..length).map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())])).collect()
}

/// A string of digits.
pub fn n_string(rng: &mut StdRng, length: usize) -> String {
    (0..length).map(|_| char::from(b'0' + rng.random_range(0..10u8))).collect()
}

/// Data of an item or a stock: every tenth holds the word ORIGINAL somewhere.
pub fn original_string(rng: &mut StdRng) -> String {
    let mut text = a_string(rng, 26, 50);
    if rng.random_range(0..10) == 0 {
        let at = rng.random_range(0..=text.len() - 8);
        text.replace_range(at..at + 8, "ORIGINAL");
    }
    text
}

/// A zip code: four digits and 11111.
pub fn zip(rng: &mut StdRng) -> String {
    n_string(rng, 4) + "11111"
}

/// The numbers 1 to `count` in random order.
pub fn permutation(rng: &mut StdRng, count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (1..=count).collect();
    numbers.shuffle(rng);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn last_names_are_those_of_the_specification() {
        assert_eq!(last_name_of(371), "PRICALLYOUGHT");
        assert_eq!(last_name_of(40), "BARPRESBAR");
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..10_000 {
            assert!((1..=60).contains(&customer(&mut rng, 60)));
            assert!((1..=100_000).contains(&item(&mut rng, 100_000)));
        }
    }
}
