package afgraft

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func transparentBytes(level, name int32, size uint32, value ...byte) []byte {
	e := binary.NativeEndian
	b := e.AppendUint32(e.AppendUint32(e.AppendUint32(nil, uint32(level)), uint32(name)), size)
	return append(b, value...)
}

func TestParseTransparent(t *testing.T) {
	for _, tt := range []struct {
		name  string
		in    []byte
		value []byte // nil: not taken
	}{
		{"int", transparentBytes(1, -2, 4, 1, 2, 3, 4), []byte{1, 2, 3, 4}},
		{"with more behind it", transparentBytes(1, -2, 2, 1, 2, 3, 4), []byte{1, 2}},
		{"no value", transparentBytes(1, -2, 0), []byte{}},
		{"longest", transparentBytes(1, -2, 116, make([]byte, 116)...), make([]byte, 116)},
		{"too long", transparentBytes(1, -2, 4, make([]byte, 117)...), nil},
		{"more than there is", transparentBytes(1, -2, 5, 1, 2, 3, 4), nil},
		{"length that overflows", transparentBytes(1, -2, 0xffffffff, 1, 2, 3, 4), nil},
		{"cut short", transparentBytes(1, -2, 0)[:11], nil},
		{"nothing", nil, nil},
	} {
		level, name, value, ok := parseTransparent(tt.in)
		if ok != (tt.value != nil) || ok && (level != 1 || name != -2 || !bytes.Equal(value, tt.value)) {
			t.Errorf("%s: %d, %d, % x, %v; want % x", tt.name, level, name, value, ok, tt.value)
		}
	}
}

func FuzzParseTransparent(f *testing.F) {
	f.Add(transparentBytes(1, 2, 4, 1, 0, 0, 0))
	f.Add(transparentBytes(1, 2, 0xfffffff4))
	f.Fuzz(func(t *testing.T, b []byte) {
		level, name, value, ok := parseTransparent(b)
		if !ok {
			return
		}
		if len(b) > transparentMax || !bytes.HasPrefix(b, transparentBytes(int32(level), int32(name), uint32(len(value)), value...)) {
			t.Errorf("%d, %d, % x of % x", level, name, value, b)
		}
	})
}

// What is written for a result is what programs read.
func FuzzAppendResult(f *testing.F) {
	f.Add(int32(1), int32(2), int32(-22))
	f.Fuzz(func(t *testing.T, level, name, result int32) {
		b := appendResult(nil, Option{Level: int(level), Name: int(name), Result: int(result)})
		e := binary.NativeEndian
		if len(b) != resultSize || int32(e.Uint32(b)) != level || int32(e.Uint32(b[4:])) != name || int32(e.Uint32(b[8:])) != result {
			t.Errorf("%d, %d, %d: % x", level, name, result, b)
		}
	})
}

func FuzzParseSockaddrGr(f *testing.F) {
	f.Add(address("ep-test"))
	f.Add(append(address("0123456789abcdef"), 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, ok := parseAddress(b)
		if ok != (len(b) >= addressSize && IsAddress(b)) {
			t.Errorf("taken: %v, % x", ok, b)
		}
		if !ok {
			return
		}
		again, ok := parseAddress(address(name))
		if !ok || again != name || bytes.IndexByte([]byte(name), 0) >= 0 || !bytes.HasPrefix(b[2:], []byte(name)) {
			t.Errorf("%q of % x, and again %q", name, b, again)
		}
	})
}

// The numbers and layouts are those of include/tsugiki/graft.h, which programs include.
func TestNumbersOfAFGraft(t *testing.T) {
	testkit.CheckC(t, "../include/tsugiki/graft.h", map[string]any{
		"AF_GRAFT":                 Family,
		"IPPROTO_GRAFT":            Level,
		"AF_GRAFT_EPNAME_MAX":      nameMax,
		"AF_GRAFT_EPNAME_MAX - 1":  endpoint.NameMax,
		"GRAFT_SO_DELAYED":         soDelayed,
		"GRAFT_SO_DELAYED_EXECUTE": soDelayedExecute,
		"GRAFT_SO_DELAYED_RESULT":  soDelayedResult,
		"GRAFT_SO_TRANSPARENT":     soTransparent,
		"GRAFT_NAME_TRANSPARENT":   nameTransparent,
		"GRAFT_SSO_TRANS_SIZE":     transparentMax,

		"sizeof(struct sockaddr_gr)":               addressSize,
		"offsetof(struct sockaddr_gr, sgr_epname)": addressSize - nameMax,
		"sizeof(struct graft_sso_result)":          resultSize,
		"sizeof(struct graft_sso_trans)":           transparentHead,
		"offsetof(struct graft_sso_trans, optlen)": transparentHead - 4,
		"sizeof(struct sockaddr_storage)":          addressMax,
	})
	testkit.CheckC(t, "../policy/c/board.h", map[string]any{"BOARD_ADDRESS_MAX": readMax})
}
