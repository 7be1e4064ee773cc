package gate

import (
	"errors"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/wire"
)

// Statistics that are cut short break the protocol. A message of another version or kind is no answer.
func TestParseAnswer(t *testing.T) {
	counted := statsMessage{tag: 7, counters: Stats{Single: 5}}
	copy(wire.Bytes(&counted), wire.Append(nil, messageHead{version: version, call: stats}))
	whole := wire.Bytes(&counted)
	if a, isAnswer, err := parseAnswer(whole); err != nil || !isAnswer || a.tag != 7 || a.stats == nil || a.stats.Single != 5 {
		t.Errorf("%+v, %v, %v", a, isAnswer, err)
	}
	for n := headSize; n < len(whole); n += 64 {
		if _, _, err := parseAnswer(whole[:n]); !errors.Is(err, ErrProtocol) {
			t.Errorf("statistics of %d bytes: %v, want ErrProtocol", n, err)
		}
	}
	other := wire.Append(nil, messageHead{version: version + 1, call: stats})
	for name, b := range map[string][]byte{
		"nothing": nil, "a cut head": whole[:headSize-1], "another version": append(other, whole[headSize:]...),
		"a call": wire.Append(nil, messageHead{version: version, call: Connect}),
	} {
		if a, isAnswer, err := parseAnswer(b); isAnswer || err != nil {
			t.Errorf("%s: %+v, %v, %v", name, a, isAnswer, err)
		}
	}
}

// Each time is in the bucket whose bounds it is within.
func TestBuckets(t *testing.T) {
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, 1: 1, 2: 2, 3: 2, 4: 3, time.Microsecond: 10, 1 << 62: TimeBuckets - 1} {
		got := Bucket(d)
		if got != want {
			t.Errorf("%d ns are in bucket %d, want %d", d, got, want)
		}
		if got > 0 && got < TimeBuckets-1 && (d >= TimeBelow(got) || d < TimeBelow(got-1)) {
			t.Errorf("%d ns are not within %v and %v", d, TimeBelow(got-1), TimeBelow(got))
		}
	}
}

// Counters of a gate are added to those of another, each to its own.
func TestAddStats(t *testing.T) {
	var s, o Stats
	o.Calls[Connect] = CallStats{Answered: 3, Passed: 2, Refused: 1}
	o.Calls[Connect].Time[4] = 3
	o.Batches, o.BatchSockets, o.Single, o.Misses, o.Again, o.Full, o.Unreported = 1, 2, 3, 4, 5, 6, 7
	s.Add(&o)
	if s != o {
		t.Errorf("%+v, want %+v", s, o)
	}
	s.Add(&o)
	if s.Calls[Connect] != (CallStats{6, 4, 2, [TimeBuckets]uint64{4: 6}}) || s.Calls[Bind] != (CallStats{}) || s.Unreported != 14 || s.Batches != 2 {
		t.Errorf("%+v", s)
	}
}

func TestNamesOfCalls(t *testing.T) {
	for call, want := range map[Call]string{Socket: "socket", Connect: "connect", calls + 100: "call 111"} {
		if got := call.String(); got != want {
			t.Errorf("call %d is %q, want %q", uint32(call), got, want)
		}
	}
}
