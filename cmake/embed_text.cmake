# cmake -DINPUT=FILE -DOUTPUT=FILE.c -DNAME=NAME -P embed_text.cmake: the bytes of a file, and a 0, as the array
# NAME of a C file. (A string literal may have no more than 4095 characters in C11.)
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"${NAME}.h\"\nconst unsigned char ${NAME}[] = {${bytes}0x00};\n")
