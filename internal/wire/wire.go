// Package wire copies structs of fixed layout into messages and out of them. C programs read
// and write the other end, with a struct of the same layout. A test of the package that has the
// Go struct compares both layouts (testkit.CheckC).
//
// It owns no format. It needs no privileges; any kernel will do.
package wire

import "unsafe"

// Bytes returns the memory of a struct as bytes. The struct has no pointers and no padding.
func Bytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Append appends a struct to a message.
func Append[T any](b []byte, v T) []byte { return append(b, Bytes(&v)...) }

// Read copies a struct out of a message. It returns false if the message has another length.
func Read[T any](b []byte) (v T, ok bool) {
	to := Bytes(&v)
	if len(b) != len(to) {
		return v, false
	}
	copy(to, b)
	return v, true
}
