package charge_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge"
)

// A daemon checks uploads of containers, and charges each container for its own upload.
func Example() {
	check := func(container string, upload []byte) uint32 {
		defer charge.Begin(container).End()
		return crc32.ChecksumIEEE(upload)
	}
	fmt.Println(check("web-1", []byte("hello")))

	// Before it ends. Without an agent there is nobody to tell.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := charge.Flush(ctx); err != nil && !errors.Is(err, api.ErrRefused) {
		fmt.Println(err)
	}
	// Output: 907060870
}
