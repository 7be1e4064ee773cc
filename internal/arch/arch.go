// Package arch holds the tests of the structure itself: which package may import
// which, and that every package says what it is for. It has no code.
package arch
