// The numbers of IQ4_NL and IQ4_XS.
const BOOK_0: u32 = 0x3f2d1801u;
const BOOK_1: u32 = 0x766a5d4fu;
const BOOK_2: u32 = 0xa6998d81u;
const BOOK_3: u32 = 0xf1d9c5b5u;
#include book
