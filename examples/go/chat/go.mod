module example.org/lowkey/examples/go/chat

go 1.19

require example.org/lowkey/bindings/go/lowkey v0.0.0

replace example.org/lowkey/bindings/go/lowkey => ../../../bindings/go/lowkey
