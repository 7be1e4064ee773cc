package enforcer

import (
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/policy"
)

// The next process finds the virtual addresses of hosts, and where servers are published.
func TestDatagramsOfAnEarlierProcess(t *testing.T) {
	tb, err := policy.NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	enforce(t, tb, func(e *Enforcement) {
		if err := e.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		d, err := e.TranslateDatagrams(testPool)
		if err != nil {
			t.Fatal(err)
		}
		hosts := map[netip.Addr]netip.Addr{}
		for v4, v6 := range map[string]string{"198.18.0.1": "2001:db8::6", "198.18.0.2": "2001:db8::7", "198.19.3.4": "2001:db8::8"} {
			hosts[netip.MustParseAddr(v4)] = netip.MustParseAddr(v6)
			if err := d.Put(netip.MustParseAddr(v4), VirtualHost{Addr: netip.MustParseAddr(v6)}); err != nil {
				t.Fatal(err)
			}
		}
		published := map[uint16]netip.AddrPort{20000: netip.MustParseAddrPort("[2001:db8::1]:53"), 20001: netip.MustParseAddrPort("[2001:db8::1]:54")}
		for private, at := range published {
			if err := e.Publish(private, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(d.Begin(), e.ServeNames(), d.Close(), e.Close()); err != nil {
			t.Fatal(err)
		}

		_, next := takeOver(t, nil, nil, nil)
		defer next.Close()
		if !ServesNames(7) {
			t.Error("it is not known that the container translates IPv4")
		}
		d, err = next.TranslateDatagrams(testPool)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for v4, v6 := range hosts {
			if host, known := d.Host(v4); !known || host != v6 {
				t.Errorf("behind %s is %s, %v; want %s", v4, host, known, v6)
			}
			if virtual, known := d.Virtual(v6); !known || virtual != v4 {
				t.Errorf("%s is %s, %v; want %s", v6, virtual, known, v4)
			}
		}
		list, err := next.Published()
		found := map[netip.AddrPort]bool{}
		for _, at := range list {
			found[at] = true
		}
		want := map[netip.AddrPort]bool{published[20000]: true, published[20001]: true}
		if err != nil || !maps.Equal(found, want) {
			t.Errorf("servers are published at %v, %v", list, err)
		}
		for private, at := range published {
			var port uint32
			var back bpf.TranslatePublished
			row := publishedRow(at)
			if err := d.objs.PrivateByPublished.Lookup(row, &port); err != nil || port != uint32(private) {
				t.Errorf("at %s is port %d, %v; want %d", at, port, err, private)
			}
			if err := d.objs.PublishedByPrivate.Lookup(uint32(private), &back); err != nil || back != row {
				t.Errorf("port %d is published at %+v, %v; want %s", private, back, err, at)
			}
		}
	})
}
