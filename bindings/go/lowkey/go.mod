module example.org/lowkey/bindings/go/lowkey

go 1.19
