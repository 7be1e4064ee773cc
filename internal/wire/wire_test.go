package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

type pair struct {
	number int32
	bytes  [4]byte
}

func TestReadIsTheInverseOfAppend(t *testing.T) {
	want := pair{-5, [4]byte{1, 2, 3, 4}}
	message := Append([]byte{9}, want)
	if n := int32(binary.NativeEndian.Uint32(message[1:])); message[0] != 9 || n != -5 || !bytes.Equal(message[5:], want.bytes[:]) {
		t.Errorf("Append: % x", message)
	}
	if got, ok := Read[pair](message[1:]); !ok || got != want {
		t.Errorf("Read: %+v, %v; want %+v", got, ok, want)
	}
	for _, length := range []int{0, 7, 9} {
		if got, ok := Read[pair](make([]byte, length)); ok || got != (pair{}) {
			t.Errorf("Read of %d bytes: %+v, %v", length, got, ok)
		}
	}
}
